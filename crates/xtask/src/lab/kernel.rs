//! The guests' kernel: the distribution's own packages, downloaded with apt-get and unpacked into
//! the cache. Nothing is installed on this computer.

mod packages;

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
use super::ctrl_c::Interrupts;

/// The modules that a guest loads; modprobe adds their declared dependencies. `rdma_rxe` needs
/// `crc32_generic` without declaring it; `cxl_pmem` needs `libnvdimm` through a program that the
/// guest lacks at that point.
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
const CHORE: Duration = Duration::from_secs(300);

/// The files with which a guest is booted.
#[derive(Clone, Debug)]
pub(super) struct Boot {
    /// The kernel.
    pub(super) kernel: PathBuf,
    /// The initial file system: busybox, the modules, and the first program.
    pub(super) initramfs: PathBuf,
}

impl Boot {
    /// Copies the files into `folder`.
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

/// The guests' boot files, from the cache, or newly made.
///
/// # Errors
/// When the kernel can't be obtained; the message says what to do.
pub(super) fn boot(cache: &Cache, interrupts: &Interrupts) -> Result<Boot> {
    let packages = packages::all(cache, interrupts)?;
    let [image, ..] = packages.as_slice() else { bail!("a kernel without a package") };
    let busybox = fs::read(BUSYBOX).with_context(|| format!("{BUSYBOX} can't be read"))?;
    let mut key = DefaultHasher::new();
    let names: Vec<_> = packages.iter().map(|package| package.file_name()).collect();
    (MODULES, INIT, busybox, names).hash(&mut key);
    let name = format!("boot-{}-{:016x}", stem(image)?, key.finish());
    let folder = match cache.find(&name) {
        Some(folder) => folder,
        None => {
            println!("lab: making {name}");
            let made = cache.make(|unfinished| {
                Ok((unpack(&packages, unfinished, interrupts)?, name.clone()))
            })?;
            cache.remove_all(|other| other.starts_with("boot-") && other != name)?;
            made
        }
    };
    Ok(Boot { kernel: folder.join("vmlinuz"), initramfs: folder.join("initramfs") })
}

fn stem(package: &Path) -> Result<&str> {
    package.file_stem().and_then(|stem| stem.to_str()).context("a package without a name")
}

/// Makes the folder with the boot files, in `work`.
fn unpack(packages: &[PathBuf], work: &Path, interrupts: &Interrupts) -> Result<PathBuf> {
    let run = |command: &mut Command| interrupts.run(command, CHORE);
    let tree = work.join("package");
    for package in packages {
        run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&tree))?;
    }
    if !tree.join("lib").exists() {
        // Where /lib is a link, the packages don't contain the link; depmod and modprobe need it.
        std::os::unix::fs::symlink("usr/lib", tree.join("lib"))?;
    }
    let version = only_entry(&tree.join("lib/modules"))?;
    run(Command::new("depmod").arg("-b").arg(&tree).arg(&version))?;
    let no_configuration = work.join("no-configuration");
    fs::create_dir(&no_configuration)?;
    let mut modprobe = Command::new("modprobe");
    modprobe.arg("-C").arg(&no_configuration).args(["-S", &version, "-d"]).arg(&tree);
    let listed = run(modprobe.args(["--all", "--show-depends"]).args(MODULES));
    let listed = listed.with_context(|| {
        format!("kernel {version} lacks a module that the lab needs (named above): the lab has been tried with the kernel of Debian 12")
    })?;
    let boot = work.join("boot");
    fs::create_dir(&boot)?;
    initramfs(&load_order(&listed), work, &boot.join("initramfs"), interrupts)?;
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

/// The module files to load, each once, after its dependencies. Built-in modules have none.
fn load_order(listed: &str) -> Vec<&Path> {
    let mut seen = BTreeSet::new();
    let files = listed.lines().filter_map(|line| line.strip_prefix("insmod "));
    files.map(|file| Path::new(file.trim())).filter(|file| seen.insert(*file)).collect()
}

/// The file name of a module without compression, and the program that decompresses it; the guests'
/// module loader does not.
fn plain(name: &str) -> (&str, Option<&'static str>) {
    let compressed = [(".zst", "zstd"), (".xz", "xz"), (".gz", "gzip")];
    let found =
        compressed.iter().find_map(|(end, program)| Some((name.strip_suffix(end)?, *program)));
    found.map_or((name, None), |(name, program)| (name, Some(program)))
}

fn copy_module(
    from: &Path,
    program: Option<&str>,
    to: &Path,
    interrupts: &Interrupts,
) -> Result<()> {
    let Some(program) = program else {
        fs::copy(from, to)?;
        return Ok(());
    };
    let copy = to.with_extension("compressed");
    fs::copy(from, &copy)?;
    let mut shell = Command::new("sh");
    // A module is binary: its bytes must not go through a pipe that is read as text.
    shell.args(["-c", "exec \"$0\" -dc <\"$1\" >\"$2\"", program]).arg(&copy).arg(to);
    interrupts.run(&mut shell, CHORE).with_context(|| {
        format!("the kernel's modules are compressed: apt-get install the package of {program}")
    })?;
    fs::remove_file(&copy)?;
    Ok(())
}

fn initramfs(modules: &[&Path], work: &Path, image: &Path, interrupts: &Interrupts) -> Result<()> {
    ensure!(!modules.is_empty(), "modprobe lists no modules");
    let tree = work.join("initramfs");
    fs::create_dir_all(tree.join("modules"))?;
    fs::create_dir(tree.join("bin"))?;
    let mut files = vec!["bin".to_owned(), "bin/busybox".into(), "init".into(), "modules".into()];
    let mut order = String::new();
    for module in modules {
        let name =
            module.file_name().and_then(|name| name.to_str()).context("a nameless module")?;
        let (name, program) = plain(name);
        copy_module(module, program, &tree.join("modules").join(name), interrupts)?;
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
    fn modules_are_unpacked_as_their_names_say() {
        assert_eq!(plain("9p.ko"), ("9p.ko", None));
        assert_eq!(plain("9p.ko.zst"), ("9p.ko", Some("zstd")));
        assert_eq!(plain("9p.ko.xz"), ("9p.ko", Some("xz")));
        let folder = tempfile::tempdir().unwrap();
        let (packed, module) = (folder.path().join("a.ko.gz"), folder.path().join("a.ko"));
        fs::write(folder.path().join("text"), [0xff, 0, 1]).unwrap();
        let gzip = Command::new("gzip").arg("-c").arg(folder.path().join("text")).output().unwrap();
        fs::write(&packed, gzip.stdout).unwrap();
        let interrupts = Interrupts::catch().unwrap();
        copy_module(&packed, Some("gzip"), &module, &interrupts).unwrap();
        assert_eq!(fs::read(&module).unwrap(), [0xff, 0, 1]);
        let error = copy_module(&packed, Some("no-such-program"), &module, &interrupts);
        assert!(format!("{:#}", error.unwrap_err()).contains("apt-get install"));
    }

    #[test]
    fn modules_are_loaded_once_and_in_the_order_listed() {
        let listed = "insmod /k/9pnet.ko \ninsmod /k/9p.ko \nbuiltin cxl_port\n\
                      insmod /k/9pnet.ko \ninsmod /k/9pnet_virtio.ko \n";
        let expected = ["/k/9pnet.ko", "/k/9p.ko", "/k/9pnet_virtio.ko"].map(Path::new);
        assert_eq!(load_order(listed), expected);
    }
}
