use std::sync::OnceLock;

use super::abi;

const NAME: &str = "libibverbs.so.1";

/// Why libibverbs cannot be used on this host.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LoadError {
    /// The library is missing or cannot be loaded.
    #[error(
        "can't load {name}: {cause}. Install it: apt-get install libibverbs1 ibverbs-providers \
         (Debian, Ubuntu), dnf install libibverbs (Fedora, RHEL)"
    )]
    Missing {
        /// The library's file name.
        name: String,
        /// The error of the dynamic loader.
        cause: String,
    },
    /// The library lacks a function.
    #[error("{name} has no {symbol}: install rdma-core 33 or later")]
    TooOld {
        /// The library's file name.
        name: String,
        /// Name of the missing function.
        symbol: &'static str,
    },
}

/// The functions of libibverbs.
pub(super) struct Library {
    pub(super) get_device_list: abi::GetDeviceList,
    pub(super) free_device_list: abi::FreeDeviceList,
    pub(super) get_device_name: abi::GetDeviceName,
    pub(super) open_device: abi::OpenDevice,
    pub(super) close_device: abi::CloseDevice,
    pub(super) query_device: abi::QueryDevice,
    pub(super) query_port: abi::QueryPort,
    pub(super) query_gid_table: abi::QueryGidTable,
    pub(super) alloc_pd: abi::AllocPd,
    pub(super) dealloc_pd: abi::DeallocPd,
    pub(super) reg_mr: abi::RegMr,
    pub(super) dereg_mr: abi::DeregMr,
    pub(super) create_comp_channel: abi::CreateCompChannel,
    pub(super) destroy_comp_channel: abi::DestroyCompChannel,
    pub(super) create_cq: abi::CreateCq,
    pub(super) destroy_cq: abi::DestroyCq,
    pub(super) get_cq_event: abi::GetCqEvent,
    pub(super) ack_cq_events: abi::AckCqEvents,
    pub(super) create_qp: abi::CreateQp,
    pub(super) modify_qp: abi::ModifyQp,
    pub(super) destroy_qp: abi::DestroyQp,
    /// Keeps the code of the functions above loaded.
    _library: libloading::Library,
}

/// libibverbs, loaded once for the process and never unloaded.
pub(super) fn library() -> Result<&'static Library, LoadError> {
    static LIBRARY: OnceLock<Result<Library, LoadError>> = OnceLock::new();
    LIBRARY.get_or_init(|| Library::load(NAME)).as_ref().map_err(Clone::clone)
}

impl Library {
    fn load(name: &str) -> Result<Self, LoadError> {
        // SAFETY: the initialisers of libibverbs have no preconditions.
        let opened = unsafe { libloading::Library::new(name) };
        let library = opened
            .map_err(|error| LoadError::Missing { name: name.into(), cause: error.to_string() })?;
        macro_rules! function {
            ($symbol:literal) => {
                // SAFETY: the type of the field is that of the function in verbs.h.
                match unsafe { library.get(concat!($symbol, "\0").as_bytes()) } {
                    Ok(symbol) => *symbol,
                    Err(_) => {
                        return Err(LoadError::TooOld { name: name.into(), symbol: $symbol });
                    }
                }
            };
        }
        Ok(Self {
            get_device_list: function!("ibv_get_device_list"),
            free_device_list: function!("ibv_free_device_list"),
            get_device_name: function!("ibv_get_device_name"),
            open_device: function!("ibv_open_device"),
            close_device: function!("ibv_close_device"),
            query_device: function!("ibv_query_device"),
            query_port: function!("ibv_query_port"),
            query_gid_table: function!("_ibv_query_gid_table"),
            alloc_pd: function!("ibv_alloc_pd"),
            dealloc_pd: function!("ibv_dealloc_pd"),
            reg_mr: function!("ibv_reg_mr"),
            dereg_mr: function!("ibv_dereg_mr"),
            create_comp_channel: function!("ibv_create_comp_channel"),
            destroy_comp_channel: function!("ibv_destroy_comp_channel"),
            create_cq: function!("ibv_create_cq"),
            destroy_cq: function!("ibv_destroy_cq"),
            get_cq_event: function!("ibv_get_cq_event"),
            ack_cq_events: function!("ibv_ack_cq_events"),
            create_qp: function!("ibv_create_qp"),
            modify_qp: function!("ibv_modify_qp"),
            destroy_qp: function!("ibv_destroy_qp"),
            _library: library,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_the_package() {
        let Err(error) = Library::load("libibverbs-of-nobody.so.1") else { panic!("it is there") };
        let text = error.to_string();
        assert!(text.contains("libibverbs-of-nobody.so.1"), "{text}");
        assert!(text.contains("apt-get install libibverbs1"), "{text}");
    }

    #[test]
    fn another_library_is_not_taken_for_it() {
        let Err(error) = Library::load("libc.so.6") else { panic!("it has everything") };
        assert!(error.to_string().contains("libc.so.6 has no ibv_get_device_list"), "{error}");
    }
}
