//! Arguments that Python's own conversions take too readily, or refuse without the way out.

use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::bytes::unchanging;

/// An `int` from 0 to 2^64 - 1. `what` names the argument in the error.
pub(crate) fn unsigned(what: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    value.extract::<u64>().map_err(|error| out_of_range(what, value, error, "0 to 2^64 - 1"))
}

/// An `int` of 64 bits with or without sign, as the bits of a word.
pub(crate) fn word(what: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let signed = value.extract::<i64>().map(i64::cast_unsigned);
    signed
        .or_else(|_| value.extract::<u64>())
        .map_err(|error| out_of_range(what, value, error, "-2^63 to 2^64 - 1"))
}

/// An `int` from 0 to 65535.
pub(crate) fn short(what: &str, value: &Bound<'_, PyAny>) -> PyResult<u16> {
    value.extract::<u16>().map_err(|error| out_of_range(what, value, error, "0 to 65535"))
}

/// The bytes of an id, or of the beginning of ids; a `str` stands for its UTF-8.
pub(crate) fn id<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    match value.cast::<PyString>() {
        Ok(text) => text.encode_utf8(),
        Err(_) => unchanging(value),
    }
}

/// A time in seconds.
pub(crate) fn seconds(what: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_| {
        PyValueError::new_err(format!("{what} is {value} s: give a time of 0 s or more"))
    })
}

/// Numbers out of range are a `ValueError`; anything but a number stays the `TypeError` that it is.
fn out_of_range(what: &str, value: &Bound<'_, PyAny>, error: PyErr, range: &str) -> PyErr {
    if error.is_instance_of::<PyOverflowError>(value.py()) {
        PyValueError::new_err(format!("{what} is {value}: it must be {range}"))
    } else {
        error
    }
}
