use std::fmt;

use super::{HostFiles, names_in};

/// A size of huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HugePage {
    /// 2 MiB.
    Size2M,
    /// 1 GiB.
    Size1G,
}

/// The kernel's pool of huge pages of one size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HugePool {
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Free pages of the pool.
    pub free: u64,
    /// Free pages that are already promised to mappings.
    pub promised: u64,
    /// Pages by which the pool may grow on demand.
    pub overcommit: u64,
}

/// The kernel's settings for transparent huge pages: the selected word of each file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransparentHuge {
    /// Private memory: `always`, `madvise` or `never`.
    pub anonymous: Option<String>,
    /// Memory of memfd and of shared memory segments. A mounted tmpfs has its own setting, the
    /// mount option `huge=`.
    pub shared: Option<String>,
}

impl HugePage {
    /// Size of the page in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Size2M => 2 << 20,
            Self::Size1G => 1 << 30,
        }
    }

    /// The file that sets the number of such pages.
    #[must_use]
    pub fn pool_file(self) -> String {
        format!("/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", self.bytes() >> 10)
    }

    /// The file that sets the number of such pages on a NUMA node.
    #[must_use]
    pub fn node_pool_file(self, node: u32) -> String {
        format!("/sys/{}/nr_hugepages", self.node_pool(node))
    }

    fn node_pool(self, node: u32) -> String {
        let kib = self.bytes() >> 10;
        format!("devices/system/node/node{node}/hugepages/hugepages-{kib}kB")
    }
}

impl fmt::Display for HugePage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Size2M => "2M",
            Self::Size1G => "1G",
        })
    }
}

impl HugePool {
    /// Pages that a mapping can get now.
    #[must_use]
    pub const fn available(&self) -> u64 {
        self.free.saturating_sub(self.promised).saturating_add(self.overcommit)
    }
}

impl HostFiles {
    /// The free huge pages of a NUMA node; 0 if the kernel does not say.
    #[must_use]
    pub fn node_huge_pages(&self, node: u32, page: HugePage) -> u64 {
        self.sys_number(format!("{}/free_hugepages", page.node_pool(node))).unwrap_or(0)
    }

    /// The pools of huge pages, smallest page size first.
    #[must_use]
    pub fn huge_pools(&self) -> Vec<HugePool> {
        let names = names_in(&self.sys("kernel/mm/hugepages"));
        let pool = |name: &String| {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let count = |file: &str| {
                self.sys_number(format!("kernel/mm/hugepages/{name}/{file}")).unwrap_or(0)
            };
            Some(HugePool {
                page_bytes: kib.checked_mul(1024)?,
                total: count("nr_hugepages"),
                free: count("free_hugepages"),
                promised: count("resv_hugepages"),
                overcommit: count("nr_overcommit_hugepages")
                    .saturating_sub(count("surplus_hugepages")),
            })
        };
        let mut pools: Vec<HugePool> = names.iter().filter_map(pool).collect();
        pools.sort_unstable_by_key(|pool| pool.page_bytes);
        pools
    }

    /// The pool of huge pages of this size; an empty one if the kernel has none.
    #[must_use]
    pub fn huge_pool(&self, page: HugePage) -> HugePool {
        let found = self.huge_pools().into_iter().find(|pool| pool.page_bytes == page.bytes());
        found.unwrap_or(HugePool { page_bytes: page.bytes(), ..HugePool::default() })
    }

    /// The kernel's settings for transparent huge pages.
    #[must_use]
    pub fn transparent_huge(&self) -> TransparentHuge {
        let setting = |file: &str| {
            let text = self.sys_text(format!("kernel/mm/transparent_hugepage/{file}"))?;
            let (_, rest) = text.split_once('[')?;
            Some(rest.split_once(']')?.0.to_owned())
        };
        TransparentHuge { anonymous: setting("enabled"), shared: setting("shmem_enabled") }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixture;
    use super::*;

    #[test]
    fn pools_and_settings_are_read() {
        const POOL: &str = "sys/kernel/mm/hugepages/hugepages-2048kB";
        let file = |name: &str| format!("{POOL}/{name}");
        let paths = ["nr_hugepages", "free_hugepages", "resv_hugepages"].map(file);
        let (_folder, machine) = fixture(&[
            (&paths[0], "300\n"),
            (&paths[1], "200\n"),
            (&paths[2], "50\n"),
            ("sys/kernel/mm/hugepages/hugepages-64kB/nr_hugepages", "1"),
            ("sys/kernel/mm/hugepages/nonsense/nr_hugepages", "1"),
            ("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [advise] never"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "nonsense"),
        ]);
        let pool = machine.huge_pool(HugePage::Size2M);
        assert_eq!((pool.total, pool.free, pool.available()), (300, 200, 150));
        assert_eq!(machine.huge_pools().len(), 2);
        assert_eq!(machine.huge_pool(HugePage::Size1G).available(), 0);
        let settings = machine.transparent_huge();
        assert_eq!(settings.shared.as_deref(), Some("advise"));
        assert_eq!(settings.anonymous, None);
    }
}
