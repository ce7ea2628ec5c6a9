//! For tests: the part of the ABI of libibverbs that this crate declares, by the names of
//! `infiniband/verbs.h`. The tests of this crate compare it with the installed header; `tests/abi`
//! compares it with the packages rdma-sys and ibverbs.

use std::mem::size_of;

pub use crate::verbs::{constants, functions, slots, structs};

/// A struct or union of the header, as this crate declares it.
#[derive(Clone, Debug)]
pub struct Struct {
    /// Its name in C, with the keyword.
    pub name: &'static str,
    /// Bytes of the declaration.
    pub size: usize,
    /// The size on x86-64 and aarch64.
    pub expected_size: usize,
    /// Its alignment in bytes.
    pub align: usize,
    /// True if the header's struct may have more fields, behind those of this crate. The library
    /// allocates such a struct, or a function of the library writes only the fields of this crate.
    pub is_start: bool,
    /// The fields, by offset.
    pub fields: Vec<Field>,
}

/// A field of a struct.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its name in C, from the start of the struct.
    pub name: &'static str,
    /// Its distance from the start of the struct, in bytes.
    pub offset: usize,
    /// The offset on x86-64 and aarch64.
    pub expected_offset: usize,
    /// Its bytes; `None` if this crate does not use the field, and perhaps declares it together
    /// with its neighbours.
    pub size: Option<usize>,
}

/// A constant of the header.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// Its name in C.
    pub name: &'static str,
    /// The value in this crate.
    pub value: usize,
    /// The value on all platforms.
    pub expected: usize,
}

/// The bytes of the result of a function, and of each of its parameters.
pub type Sizes = Vec<usize>;

/// A type of C functions.
pub trait Signature {
    /// The bytes of the result, and of each parameter.
    fn sizes() -> Sizes;
}

macro_rules! signature {
    ($($parameter:ident),*) => {
        impl<Returned, $($parameter),*> Signature
            for unsafe extern "C" fn($($parameter),*) -> Returned
        {
            fn sizes() -> Sizes {
                vec![size_of::<Returned>(), $(size_of::<$parameter>()),*]
            }
        }
    };
}

signature!(A);
signature!(A, B);
signature!(A, B, C);
signature!(A, B, C, D);
signature!(A, B, C, D, E);

/// The sizes of a function, given by its type.
pub fn sizes_of<F: Signature>(_function: F) -> Sizes {
    F::sizes()
}

/// The sizes of a function pointer in a struct, given by an expression for the field.
pub fn sizes_in<T, F: Signature>(_field: fn(&T) -> Option<F>) -> Sizes {
    F::sizes()
}

/// The bytes of a field, given by an expression for its address.
pub fn size_in<T, F>(_field: fn(&T) -> *const F) -> usize {
    size_of::<F>()
}
