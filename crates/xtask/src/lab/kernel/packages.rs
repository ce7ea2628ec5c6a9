//! The packages of a kernel, and their download into the cache.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::CHORE;
use crate::lab::cache::Cache;
use crate::lab::ctrl_c::Interrupts;

const DOWNLOAD: Duration = Duration::from_secs(300);
const OS_RELEASE: &str = "/etc/os-release";

/// A distribution whose kernel packages are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distribution {
    Debian,
    Ubuntu,
}

impl Distribution {
    /// The distribution that `/etc/os-release` names in ID or ID_LIKE.
    fn of(os_release: &str) -> Option<Self> {
        let value = |name: &str| {
            let line = os_release.lines().find_map(|line| line.strip_prefix(name));
            line.map_or("", |line| line.trim().trim_matches(['"', '\'']))
        };
        let mut words = value("ID=").split(' ').chain(value("ID_LIKE=").split(' '));
        words.find_map(|word| match word {
            "debian" => Some(Self::Debian),
            "ubuntu" => Some(Self::Ubuntu),
            _ => None,
        })
    }

    /// The package that depends on the current kernel.
    const fn newest(self) -> &'static str {
        match self {
            Self::Debian => "linux-image-amd64",
            Self::Ubuntu => "linux-image-generic",
        }
    }

    /// The packages of the kernel whose image is in `image`, that one first. Ubuntu has the modules
    /// in packages of their own, in some releases in two.
    fn packages(self, image: &str, exists: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        let mut all = vec![image.to_owned()];
        if self == Self::Ubuntu {
            let version = image.trim_start_matches("linux-image-").trim_start_matches("unsigned-");
            let modules = format!("linux-modules-{version}");
            if !exists(&modules) {
                bail!("apt-cache knows no {modules}, which {image} needs: apt-get update");
            }
            all.push(modules);
            all.extend(Some(format!("linux-modules-extra-{version}")).filter(|name| exists(name)));
        }
        Ok(all)
    }
}

/// The packages of the kernel in the cache, the image first: those of the current kernel, or of the
/// newest cached one if the current one can't be downloaded.
pub(super) fn all(cache: &Cache, interrupts: &Interrupts) -> Result<Vec<PathBuf>> {
    let cached = cached(&cache.names()?);
    let found = present(interrupts).and_then(|packages| fetch(cache, &packages, interrupts));
    match (found, cached) {
        (Ok(paths), _) => Ok(paths),
        (Err(error), Some(names)) => {
            interrupts.check()?;
            println!("!!!! lab: {error:#}; the guests run {}, which is cached !!!!", names[0]);
            Ok(names.iter().map(|name| cache.folder().join(name)).collect())
        }
        (Err(error), None) => Err(error.context(format!(
            "the lab has no kernel for its guests. With network: bash deploy/prepare.sh test, then \
             again. Without: copy {} from a computer on which the lab has run",
            cache.folder().display()
        ))),
    }
}

/// The files of the newest complete kernel among the names of a cache, the image first.
fn cached(names: &[String]) -> Option<Vec<String>> {
    let packages = || names.iter().filter(|name| name.ends_with(".deb"));
    let modules = || packages().filter(|name| name.starts_with("linux-modules-"));
    packages().rev().find_map(|image| {
        let (version, _) = image.strip_prefix("linux-image-")?.split_once('_')?;
        let version = version.trim_start_matches("unsigned-");
        let own = |name: &&String| {
            let named = name.trim_start_matches("linux-modules-").trim_start_matches("extra-");
            named.split_once('_').is_some_and(|(of, _)| of == version)
        };
        let own: Vec<_> = modules().filter(own).cloned().collect();
        // A kernel with modules in packages of their own is incomplete without these.
        let is_complete = !own.is_empty() || modules().next().is_none();
        is_complete.then(|| [vec![image.clone()], own].concat())
    })
}

/// The names of the current kernel's packages and of their files, as of the last `apt-get update`;
/// without network access.
fn present(interrupts: &Interrupts) -> Result<Vec<(String, String)>> {
    let release = fs::read_to_string(OS_RELEASE).with_context(|| format!("no {OS_RELEASE}"))?;
    let distribution = Distribution::of(&release).with_context(|| {
        format!("{OS_RELEASE} names neither Debian nor Ubuntu, whose kernels the lab knows")
    })?;
    let newest = distribution.newest();
    let mut depends = Command::new("apt-cache");
    depends.args(["depends", "--important", newest]).stderr(Stdio::null());
    let unknown = || format!("apt-cache knows no {newest}");
    let depends = interrupts.run(&mut depends, CHORE).with_context(unknown)?;
    let image = image_of(&depends).with_context(unknown)?;
    let packages = distribution.packages(image, |name| show(name, interrupts).is_ok())?;
    let with_file = packages.into_iter().map(|package| {
        let shown = show(&package, interrupts)?;
        let version =
            field(&shown, "Version").with_context(|| format!("{package} has no version"))?;
        // The file name that apt-get uses.
        let file = format!("{package}_{}_amd64.deb", version.replace(':', "%3a"));
        Ok((package, file))
    });
    with_file.collect()
}

fn show(package: &str, interrupts: &Interrupts) -> Result<String> {
    let mut show = Command::new("apt-cache");
    show.args(["show", "--no-all-versions", package]).stderr(Stdio::null());
    interrupts.run(&mut show, CHORE).with_context(|| format!("apt-cache knows no {package}"))
}

fn image_of(depends: &str) -> Option<&str> {
    let names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let mut images = names.filter(|name| name.starts_with("linux-image-"));
    images.find(|name| !name.contains(['/', ' ']))
}

fn field<'a>(shown: &'a str, name: &str) -> Option<&'a str> {
    shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The paths of the packages in the cache; downloads missing ones, and removes those of other
/// kernels.
fn fetch(
    cache: &Cache,
    packages: &[(String, String)],
    interrupts: &Interrupts,
) -> Result<Vec<PathBuf>> {
    let fetched = packages.iter().map(|(package, file)| match cache.find(file) {
        Some(path) => Ok(path),
        None => download(cache, package, file, interrupts),
    });
    let fetched = fetched.collect::<Result<_>>()?;
    cache.remove_all(|other| {
        other.ends_with(".deb") && packages.iter().all(|(_, file)| file != other)
    })?;
    Ok(fetched)
}

fn download(cache: &Cache, package: &str, file: &str, interrupts: &Interrupts) -> Result<PathBuf> {
    println!("lab: downloading {file}, up to 120 MB");
    cache.make(|unfinished| {
        let mut apt = Command::new("apt-get");
        // apt-get verifies the download. Its sandbox user can't write here, which would only cause
        // a warning.
        apt.args(["download", "-qq", "-o", "APT::Sandbox::User=root", package])
            .current_dir(unfinished);
        interrupts.run(&mut apt, DOWNLOAD).with_context(|| format!("no download of {package}"))?;
        Ok((unfinished.join(file), file.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distribution_is_the_one_named_or_the_nearest_it_is_like() {
        let of = |text| Distribution::of(text);
        let (debian, ubuntu) = (Some(Distribution::Debian), Some(Distribution::Ubuntu));
        assert_eq!(of("NAME=\"Debian GNU/Linux\"\nVERSION_ID=\"12\"\nID=debian\n"), debian);
        assert_eq!(of("PRETTY_NAME=\"Ubuntu 24.04\"\nID=ubuntu\nID_LIKE=debian\n"), ubuntu);
        assert_eq!(of("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"), ubuntu);
        assert_eq!(of("ID='raspbian'\nID_LIKE='debian'\n"), debian);
        assert_eq!(of("ID=fedora\nVERSION_CODENAME=debian\n"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn the_present_kernel_is_read_from_what_apt_prints() {
        let depends = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n";
        assert_eq!(image_of(depends), Some("linux-image-6.1.0-56-amd64"));
        let depends = "linux-image-generic\n  Depends: linux-firmware\n  Depends: \
                       linux-image-6.8.0-31-generic\n  Depends: linux-modules-extra-6.8.0-31-generic\n";
        assert_eq!(image_of(depends), Some("linux-image-6.8.0-31-generic"));
        assert_eq!(image_of("linux-image-amd64\n  Depends: <none>\n"), None);
        assert_eq!(image_of(""), None);
        assert_eq!(field("Package: a\nVersion: 6.1-2\n", "Version"), Some("6.1-2"));
        assert_eq!(field("Version-Of: 1\n", "Version"), None);
    }

    #[test]
    fn a_kernel_of_ubuntu_brings_its_modules() {
        let (debian, ubuntu) = (Distribution::Debian, Distribution::Ubuntu);
        assert_eq!(
            (debian.newest(), ubuntu.newest()),
            ("linux-image-amd64", "linux-image-generic")
        );
        let image = "linux-image-6.1.0-56-amd64";
        assert_eq!(debian.packages(image, |_| true).unwrap(), [image]);
        let all = [
            "linux-image-6.8.0-31-generic",
            "linux-modules-6.8.0-31-generic",
            "linux-modules-extra-6.8.0-31-generic",
        ];
        assert_eq!(ubuntu.packages(all[0], |_| true).unwrap(), all);
        let no_extra = |name: &str| !name.contains("extra");
        assert_eq!(ubuntu.packages(all[0], no_extra).unwrap(), all[..2]);
        let unsigned = ubuntu.packages("linux-image-unsigned-6.8.0-31-generic", |_| true).unwrap();
        assert_eq!(unsigned[1..], all[1..]);
        let error = ubuntu.packages(all[0], |_| false).unwrap_err().to_string();
        assert!(
            error.contains("linux-modules-6.8.0-31-generic") && error.contains("apt-get update")
        );
    }

    #[test]
    fn the_packages_that_are_cached_are_found_image_first() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(cached(&names(&["boot-linux-image-1", "lock"])), None);
        let debian = names(&["boot-linux-image-1", "linux-image-1_1_amd64.deb", "lock"]);
        assert_eq!(cached(&debian), Some(names(&["linux-image-1_1_amd64.deb"])));
        let ubuntu =
            names(&["linux-image-1_1.deb", "linux-modules-1_1.deb", "linux-modules-extra-1_1.deb"]);
        assert_eq!(cached(&ubuntu), Some(ubuntu.clone()));
        // The download of a newer kernel was interrupted.
        let broken = [names(&["linux-image-1_1.deb", "linux-image-2_1.deb"]), ubuntu[1..].into()];
        assert_eq!(cached(&broken.concat()), Some(ubuntu));
        assert_eq!(cached(&names(&["linux-modules-1_1.deb"])), None);
    }
}
