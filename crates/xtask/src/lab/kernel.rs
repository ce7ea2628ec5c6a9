//! The guests' kernel: Debian's own package, fetched with apt-get and unpacked into the cache.
//! Nothing is installed on this computer.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::cache::Cache;
use super::interrupts::Interrupts;

/// What a guest loads, with what each of them needs. `crc32_generic` is needed by `rdma_rxe`,
/// which does not say so; `libnvdimm` by `cxl_pmem`, through a program that a guest has not yet.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "9p",
    "9pnet_virtio",
    "overlay",
    "fuse",
    "veth",
    "sch_netem",
    "crc32_generic",
    "crc32c_generic",
    "rdma_rxe",
    "ib_uverbs",
    "ib_umad",
    "rdma_ucm",
    "libnvdimm",
    "nd_pmem",
    "dax_pmem",
    "dax_hmem",
    "device_dax",
    "kmem",
    "cxl_acpi",
    "cxl_pci",
    "cxl_mem",
    "cxl_pmem",
];

const INIT: &str = include_str!("../../../../deploy/lab/init");
const BUSYBOX: &str = "/bin/busybox";
/// The package that depends on Debian's present kernel.
const NEWEST: &str = "linux-image-amd64";
const DOWNLOAD: Duration = Duration::from_secs(300);
const CHORE: Duration = Duration::from_secs(300);

/// What a guest is started with.
#[derive(Clone, Debug)]
pub(super) struct Boot {
    /// The kernel.
    pub(super) kernel: PathBuf,
    /// The first file system: busybox, the modules, and the first program.
    pub(super) initramfs: PathBuf,
}

impl Boot {
    /// A copy in `folder`.
    pub(super) fn copy_to(&self, folder: &Path) -> Result<Self> {
        let copy = |from: &Path, name| -> Result<PathBuf> {
            let to = folder.join(name);
            fs::copy(from, &to).with_context(|| format!("{} can't be copied", from.display()))?;
            Ok(to)
        };
        let kernel = copy(&self.kernel, "vmlinuz")?;
        Ok(Self { kernel, initramfs: copy(&self.initramfs, "initramfs")? })
    }
}

/// Finds in the cache what guests boot from, or makes it.
///
/// # Errors
/// When the kernel can't be had; says what to do then.
pub(super) fn boot(cache: &Cache, interrupts: &Interrupts) -> Result<Boot> {
    let package = package(cache, interrupts)?;
    let busybox = fs::read(BUSYBOX).with_context(|| format!("{BUSYBOX} can't be read"))?;
    let mut key = DefaultHasher::new();
    (MODULES, INIT, busybox).hash(&mut key);
    let name = format!("boot-{}-{:016x}", stem(&package)?, key.finish());
    let folder = match cache.find(&name) {
        Some(folder) => folder,
        None => {
            println!("lab: making {name}");
            let made = cache
                .make(|unfinished| Ok((unpack(&package, unfinished, interrupts)?, name.clone())))?;
            cache.remove_all(|other| other.starts_with("boot-") && other != name)?;
            made
        }
    };
    Ok(Boot { kernel: folder.join("vmlinuz"), initramfs: folder.join("initramfs") })
}

/// Debian's kernel package in the cache: the present one, or the newest that is there if the
/// present one can't be downloaded.
fn package(cache: &Cache, interrupts: &Interrupts) -> Result<PathBuf> {
    let cached = cache.names()?.into_iter().rfind(|name| name.ends_with(".deb"));
    let found = present(interrupts).and_then(|(package, file)| match cache.find(&file) {
        Some(path) => Ok(path),
        None => download(cache, &package, &file, interrupts),
    });
    match (found, cached) {
        (Ok(path), _) => Ok(path),
        (Err(error), Some(name)) => {
            interrupts.check()?;
            println!("!!!! lab: {error:#}; the guests run {name}, which is cached !!!!");
            Ok(cache.folder().join(name))
        }
        (Err(error), None) => Err(error.context(format!(
            "the lab has no kernel for its guests. With network: bash deploy/prepare.sh test, then \
             again. Without: copy {} from a computer on which the lab has run",
            cache.folder().display()
        ))),
    }
}

/// The name of Debian's present kernel package, and of its file: as the last `apt-get update` has
/// seen it, without network.
fn present(interrupts: &Interrupts) -> Result<(String, String)> {
    let mut depends = Command::new("apt-cache");
    depends.args(["depends", "--important", NEWEST]).stderr(Stdio::null());
    let unknown = || format!("apt-cache knows no {NEWEST}");
    let depends = interrupts.run(&mut depends, CHORE).with_context(unknown)?;
    let package = first_dependency(&depends).with_context(unknown)?;
    let mut show = Command::new("apt-cache");
    show.args(["show", "--no-all-versions", package]).stderr(Stdio::null());
    let shown = interrupts.run(&mut show, CHORE).with_context(|| format!("no {package}"))?;
    let version = field(&shown, "Version").with_context(|| format!("{package} has no version"))?;
    // As apt-get names the file.
    let file = format!("{package}_{}_amd64.deb", version.replace(':', "%3a"));
    Ok((package.to_owned(), file))
}

fn first_dependency(depends: &str) -> Option<&str> {
    let name = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "))?;
    (name.starts_with("linux-image-") && !name.contains(['/', ' '])).then_some(name)
}

fn field<'a>(shown: &'a str, name: &str) -> Option<&'a str> {
    shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn download(cache: &Cache, package: &str, file: &str, interrupts: &Interrupts) -> Result<PathBuf> {
    println!("lab: downloading {file}, 70 MB");
    let downloaded = cache.make(|unfinished| {
        let mut apt = Command::new("apt-get");
        // apt-get checks what it got; its user can't write here, which is nothing to warn of.
        apt.args(["download", "-qq", "-o", "APT::Sandbox::User=root", package])
            .current_dir(unfinished);
        interrupts.run(&mut apt, DOWNLOAD).with_context(|| format!("no download of {package}"))?;
        Ok((unfinished.join(file), file.to_owned()))
    })?;
    cache.remove_all(|other| other.ends_with(".deb") && other != file)?;
    Ok(downloaded)
}

fn stem(package: &Path) -> Result<&str> {
    package.file_stem().and_then(|stem| stem.to_str()).context("a package without a name")
}

/// Makes the folder that guests boot from, in `work`.
fn unpack(package: &Path, work: &Path, interrupts: &Interrupts) -> Result<PathBuf> {
    let run = |command: &mut Command| interrupts.run(command, CHORE);
    let tree = work.join("package");
    run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&tree))?;
    let version = only_entry(&tree.join("lib/modules"))?;
    run(Command::new("depmod").arg("-b").arg(&tree).arg(&version))?;
    let no_configuration = work.join("no-configuration");
    fs::create_dir(&no_configuration)?;
    let mut modprobe = Command::new("modprobe");
    modprobe.arg("-C").arg(&no_configuration).args(["-S", &version, "-d"]).arg(&tree);
    let listed = run(modprobe.args(["--all", "--show-depends"]).args(MODULES))?;
    let boot = work.join("boot");
    fs::create_dir(&boot)?;
    initramfs(&load_order(&listed), work, &boot.join("initramfs"))?;
    fs::rename(tree.join(format!("boot/vmlinuz-{version}")), boot.join("vmlinuz"))?;
    Ok(boot)
}

fn only_entry(folder: &Path) -> Result<String> {
    let mut entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    match (entries.next().transpose()?, entries.next()) {
        (Some(entry), None) => {
            entry.file_name().into_string().ok().context("a version that is no text")
        }
        _ => bail!("{} does not hold one kernel's modules", folder.display()),
    }
}

/// The files to load, each once, after those that it needs. Built-in modules have none.
fn load_order(listed: &str) -> Vec<&Path> {
    let mut seen = BTreeSet::new();
    let files = listed.lines().filter_map(|line| line.strip_prefix("insmod "));
    files.map(|file| Path::new(file.trim())).filter(|file| seen.insert(*file)).collect()
}

fn initramfs(modules: &[&Path], work: &Path, image: &Path) -> Result<()> {
    ensure!(!modules.is_empty(), "modprobe lists no modules");
    let tree = work.join("initramfs");
    fs::create_dir_all(tree.join("modules"))?;
    fs::create_dir(tree.join("bin"))?;
    let mut files = vec!["bin".to_owned(), "bin/busybox".into(), "init".into(), "modules".into()];
    let mut order = String::new();
    for module in modules {
        let name =
            module.file_name().and_then(|name| name.to_str()).context("a nameless module")?;
        fs::copy(module, tree.join("modules").join(name))?;
        files.push(format!("modules/{name}"));
        order += &format!("{name}\n");
    }
    fs::write(tree.join("modules/order"), order)?;
    files.push("modules/order".into());
    fs::copy(BUSYBOX, tree.join("bin/busybox"))?;
    fs::write(tree.join("init"), INIT)?;
    fs::set_permissions(tree.join("init"), fs::Permissions::from_mode(0o755))?;
    let mut archive = Command::new("cpio")
        .args(["--create", "--format=newc", "--quiet", "--owner=+0:+0"])
        .current_dir(&tree)
        .stdin(Stdio::piped())
        .stdout(fs::File::create(image)?)
        .spawn()
        .context("cpio did not start")?;
    let mut names = archive.stdin.take().context("no pipe")?;
    names.write_all((files.join("\n") + "\n").as_bytes())?;
    drop(names);
    let status = archive.wait()?;
    ensure!(status.success(), "cpio failed: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_present_kernel_is_read_from_what_apt_prints() {
        let depends = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n";
        assert_eq!(first_dependency(depends), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(first_dependency("linux-image-amd64\n  Depends: <none>\n"), None);
        assert_eq!(first_dependency(""), None);
        assert_eq!(field("Package: a\nVersion: 6.1-2\n", "Version"), Some("6.1-2"));
        assert_eq!(field("Version-Of: 1\n", "Version"), None);
    }

    #[test]
    fn modules_are_loaded_once_and_in_the_order_listed() {
        let listed = "insmod /k/9pnet.ko \ninsmod /k/9p.ko \nbuiltin cxl_port\n\
                      insmod /k/9pnet.ko \ninsmod /k/9pnet_virtio.ko \n";
        let expected = ["/k/9pnet.ko", "/k/9p.ko", "/k/9pnet_virtio.ko"].map(Path::new);
        assert_eq!(load_order(listed), expected);
    }
}
