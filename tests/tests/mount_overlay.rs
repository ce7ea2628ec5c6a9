//! A mount as the upper directory of an overlay file system, as container stores use it.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rackpool_testing::skipped;
use rackpool_tests::files::tree;
use rackpool_tests::mount::{TestMount, why_not};
use rackpool_tests::pool::TestPool;
use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with};

const MEMORY: u64 = 256 << 20;
const PAGE: u64 = 2 << 20;

/// The lower layer of an overlay, and the file system mounted in a rack, which holds the upper
/// layer. The mount is dropped before the pool.
struct Layers {
    mount: TestMount,
    /// The folders of the lower layer, of the reference tree without an overlay, and of the
    /// overlay's mount point.
    other: tempfile::TempDir,
    _pool: TestPool,
}

/// An overlay; unmounted when dropped.
struct Overlay(PathBuf);

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

impl Layers {
    /// `None`, reported as skipped, where mounting is impossible.
    fn start() -> Option<Self> {
        if let Some(reason) = why_not() {
            skipped(reason);
            return None;
        }
        let known = fs::read_to_string("/proc/filesystems").unwrap();
        if !known.split_whitespace().any(|name| name == "overlay") {
            skipped("the kernel has no overlay file system: modprobe overlay");
            return None;
        }
        rustix::process::umask(rustix::fs::Mode::empty());
        let pool = TestPool::start(MEMORY, PAGE);
        pool.wait_until_racks_meet();
        let mount = TestMount::start(&pool, 0);
        // On tmpfs: the layers must not themselves be on an overlay file system.
        let other = tempfile::tempdir_in("/dev/shm").unwrap();
        for folder in ["lower", "model", "merged"] {
            fs::create_dir(other.path().join(folder)).unwrap();
        }
        let layers = Self { mount, other, _pool: pool };
        for folder in ["upper", "work"] {
            fs::create_dir(layers.mount.path(folder)).unwrap();
        }
        Some(layers)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.other.path().join(name)
    }

    /// Mounts the overlay with these options beside the layers.
    #[track_caller]
    fn overlay(&self, options: &str) -> Overlay {
        let (lower, merged) = (self.at("lower"), self.at("merged"));
        let (upper, work) = (self.mount.path("upper"), self.mount.path("work"));
        let [lower, upper, work] = [&lower, &upper, &work].map(|path| path.display());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work},{options}");
        let none = MsFlags::empty();
        mount(Some("overlay"), &merged, Some("overlay"), none, Some(options.as_str())).unwrap();
        Overlay(merged)
    }
}

/// Creates the contents of an image: files, folders, links.
fn image(root: &Path) {
    for folder in ["bin", "etc", "etc/inner", "usr", "usr/lib", "usr/lib/deep", "old", "gone"] {
        fs::create_dir(root.join(folder)).unwrap();
    }
    for (number, file) in [
        "bin/sh",
        "bin/ls",
        "etc/passwd",
        "etc/inner/a",
        "etc/inner/b",
        "usr/lib/x.so",
        "usr/lib/deep/y.so",
        "old/a",
        "old/b",
        "gone/a",
        "large",
    ]
    .into_iter()
    .enumerate()
    {
        let len = if file == "large" { 300_000 } else { 100 * number };
        fs::write(root.join(file), vec![u8::try_from(number).unwrap(); len]).unwrap();
    }
    symlink("sh", root.join("bin/bash")).unwrap();
    let attribute = |name: &str, value: &[u8]| {
        rustix::fs::setxattr(root.join("etc/passwd"), name, value, XattrFlags::empty()).unwrap();
    };
    attribute("user.attribute", b"of the image");
    rustix::fs::chown(root.join("etc/passwd"), Some(rustix::fs::Uid::from_raw(7)), None).unwrap();
}

/// The operations of a container on its image, on an overlay or on a plain copy of the image.
fn container(root: &Path, renames_folders: bool) {
    let at = |name: &str| root.join(name);
    // New files.
    fs::write(at("new"), "new").unwrap();
    fs::create_dir_all(at("var/log")).unwrap();
    fs::write(at("var/log/messages"), vec![1; 100_000]).unwrap();
    fs::hard_link(at("new"), at("linked")).unwrap();
    // Changed files: contents, in the middle and beyond the end, and attributes.
    let file = fs::File::options().write(true).open(at("large")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[9; 5000], 299_000).unwrap();
    drop(file);
    fs::write(at("etc/passwd"), "root:x:0:0").unwrap();
    rustix::fs::chmod(at("bin/ls"), rustix::fs::Mode::from_raw_mode(0o4711)).unwrap();
    rustix::fs::setxattr(at("bin/ls"), "user.attribute", b"set", XattrFlags::empty()).unwrap();
    // Removed and recreated names: none of the lower contents may show through.
    fs::remove_file(at("etc/inner/a")).unwrap();
    fs::remove_dir_all(at("gone")).unwrap();
    fs::remove_dir_all(at("old")).unwrap();
    fs::create_dir(at("old")).unwrap();
    fs::write(at("old/c"), "c").unwrap();
    fs::remove_file(at("bin/bash")).unwrap();
    fs::write(at("bin/bash"), "no link any more").unwrap();
    // Renamed and replaced files, as by package managers.
    fs::rename(at("bin/sh"), at("bin/dash")).unwrap();
    fs::rename(at("new"), at("etc/inner/b")).unwrap();
    fs::write(at("usr/lib/x.so.new"), "x").unwrap();
    fs::rename(at("usr/lib/x.so.new"), at("usr/lib/x.so")).unwrap();
    renameat_with(CWD, at("bin/dash"), CWD, at("large"), RenameFlags::EXCHANGE).unwrap();
    if renames_folders {
        fs::rename(at("usr/lib"), at("usr/lib64")).unwrap();
        fs::rename(at("usr/lib64/deep"), at("etc/deep")).unwrap();
        fs::write(at("etc/deep/z.so"), "z").unwrap();
    }
}

fn is_whiteout(path: &Path) -> bool {
    let found = fs::symlink_metadata(path).unwrap();
    found.file_type().is_char_device() && found.rdev() == 0
}

/// Executes the operations of a container and compares the trees, at once and after each remount of
/// overlay and volume.
fn try_as_upper(options: &str, renames_folders: bool) {
    let Some(mut layers) = Layers::start() else { return };
    for root in ["lower", "model"] {
        image(&layers.at(root));
    }
    let model = layers.at("model");
    let overlay = layers.overlay(options);
    container(&overlay.0, renames_folders);
    container(&model, renames_folders);
    tree::compare_overlay(&overlay.0, &model).unwrap();
    drop(overlay);
    // The lower layer is unchanged.
    assert_eq!(fs::read(layers.at("lower/etc/inner/a")).unwrap(), vec![3; 300]);
    for gone in ["upper/etc/inner/a", "upper/gone", "upper/bin/sh"] {
        assert!(is_whiteout(&layers.mount.path(gone)), "{gone}");
    }
    assert!(layers.mount.end());
    layers.mount.mount();
    let overlay = layers.overlay(options);
    tree::compare_overlay(&overlay.0, &model).unwrap();
    for root in [&overlay.0, &model] {
        fs::rename(root.join("bin/ls"), root.join("bin/list")).unwrap();
        fs::remove_file(root.join("etc/passwd")).unwrap();
    }
    layers.mount.kill();
    drop(overlay);
    layers.mount.mount();
    let overlay = layers.overlay(options);
    tree::compare_overlay(&overlay.0, &model).unwrap();
}

#[test]
fn a_container_keeps_what_it_changes_of_its_image_in_a_mount() {
    try_as_upper("redirect_dir=on", true);
}

#[test]
fn a_container_of_a_user_keeps_its_changes_in_a_mount() {
    // This overlay keeps its marks in user attributes, and does not rename folders of the image.
    try_as_upper("userxattr", false);
}

#[test]
fn random_operations_on_an_overlay_match_those_elsewhere() {
    let Some(layers) = Layers::start() else { return };
    let overlay = layers.overlay("redirect_dir=on");
    for seed in 0..2_u64 {
        let folders = [&overlay.0, &layers.at("model")].map(|root| root.join(seed.to_string()));
        for folder in &folders {
            fs::create_dir(folder).unwrap();
        }
        tree::exercise(&folders[0], &folders[1], seed, 300).unwrap();
    }
}
