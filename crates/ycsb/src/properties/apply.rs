//! The effect of properties on a run.

use super::error::PropertyError;
use super::given::{Properties, SHARES};
use crate::key::KeyStyle;
use crate::workload::{Distribution, Mix, ScanLengths, Workload};
use crate::ycsb_options::YcsbOptions;

/// YCSB's default shares.
const DEFAULT_SHARES: [f64; 5] = [0.95, 0.05, 0.0, 0.0, 0.0];

/// The options as changed by the properties.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) options: YcsbOptions,
    /// Shares of operations, in place of the options' workloads.
    shares: Option<[f64; 5]>,
    /// The number of the first record.
    pub(crate) first: u64,
    /// Number of records to load, if not all from the first one on.
    count: Option<u64>,
    pub(crate) keys: KeyStyle,
    pub(crate) scans: ScanLengths,
    /// The target rate of all threads together, in operations per second.
    pub(crate) rate: Option<u64>,
    /// Prefix of the fields' names, before their numbers, in stores that name fields.
    pub(crate) field_prefix: String,
    /// Warnings to print before the run.
    pub(crate) warnings: Vec<String>,
}

/// Properties of YCSB without effect here, or with only their usual value supported.
const WITHOUT_EFFECT: [&str; 8] = [
    "db",
    "exporter",
    "exportfile",
    "hdrhistogram.percentiles",
    "measurementtype",
    "readallfieldsbyname",
    "table",
    "workload",
];

impl Settings {
    /// Applies all properties to the options.
    pub(crate) fn new(options: &YcsbOptions) -> Result<Self, PropertyError> {
        let properties = Properties::read(&options.property_files, &options.properties)?;
        let mut settings = Self {
            options: options.clone(),
            shares: None,
            first: 0,
            count: None,
            keys: KeyStyle::default(),
            scans: ScanLengths::default(),
            rate: None,
            field_prefix: "field".to_owned(),
            warnings: Vec::new(),
        };
        if properties.from_file {
            settings.options.field_count = 10;
            settings.options.field_length = 100;
        }
        for (name, value) in &properties.pairs {
            settings.apply(name, value)?;
        }
        settings.count_records()?;
        Ok(settings)
    }

    /// Returns the workloads to run. Fails if the shares are invalid.
    pub(crate) fn workloads(&self) -> Result<Vec<Workload>, PropertyError> {
        let given = self.options.distribution;
        let Some(shares) = self.shares else {
            let names = self.options.workloads.iter();
            let own = names.map(|name| Workload::from(*name));
            let distribution = |own: Workload| given.unwrap_or(own.distribution);
            return Ok(own
                .map(|own| Workload { distribution: distribution(own), ..own })
                .collect());
        };
        let mix = Mix::of_shares(shares).ok_or_else(|| {
            let value = shares.map(|share| share.to_string()).join(", ");
            wrong("*proportion", &value, "give shares of 0 or more, one of them more than 0")
        })?;
        Ok(vec![Workload::of_mix(mix, given.unwrap_or(Distribution::Uniform))])
    }

    fn apply(&mut self, name: &str, value: &str) -> Result<(), PropertyError> {
        if let Some(at) = SHARES.iter().position(|share| *share == name) {
            let share = number::<f64>(name, value, "give a share from 0 to 1")?;
            self.shares.get_or_insert(DEFAULT_SHARES)[at] = share;
            return Ok(());
        }
        let count = |needs| number::<u64>(name, value, needs);
        let options = &mut self.options;
        match name {
            "recordcount" => options.records = count("give a number of records")?,
            "operationcount" => options.operations = count("give a number of operations")?,
            "threadcount" => options.threads = number(name, value, "give a number of threads")?,
            "target" => {
                let rate = count("give operations per second, or 0 for as many as there can be")?;
                self.rate = (rate > 0).then_some(rate);
            }
            "fieldcount" => options.field_count = number(name, value, "give a number of fields")?,
            "fieldlength" => options.field_length = number(name, value, "give a number of bytes")?,
            "readallfields" => options.read_all_fields = truth(name, value)?,
            "writeallfields" => options.write_all_fields = truth(name, value)?,
            "dataintegrity" => options.verify |= truth(name, value)?,
            "requestdistribution" => {
                options.distribution = Some(match value {
                    "uniform" => Distribution::Uniform,
                    "zipfian" => Distribution::Zipfian,
                    "latest" => Distribution::Latest,
                    _ => return Err(wrong(name, value, "give uniform, zipfian or latest")),
                });
            }
            "fieldlengthdistribution" if value != "constant" => {
                return Err(wrong(name, value, "all fields have one length: give constant"));
            }
            "fieldlengthdistribution" => {}
            "fieldnameprefix" => self.field_prefix = value.to_owned(),
            "insertstart" => self.first = count("give the number of a record")?,
            "insertcount" => self.count = Some(count("give a number of records")?),
            "insertorder" => self.keys.hashed = value != "ordered",
            "zeropadding" => self.keys.digits = digits(name, value)?,
            "minscanlength" => self.scans.least = count("give a number of records")?,
            "maxscanlength" => self.scans.most = count("give a number of records")?,
            "scanlengthdistribution" => {
                self.scans.distribution = match value {
                    "uniform" => Distribution::Uniform,
                    "zipfian" => Distribution::Zipfian,
                    _ => return Err(wrong(name, value, "give uniform or zipfian")),
                };
            }
            "workload" if !value.ends_with("CoreWorkload") => {
                return Err(wrong(name, value, "only YCSB's CoreWorkload is here"));
            }
            name if WITHOUT_EFFECT.contains(&name) => {}
            _ => self.warnings.push(format!("the property {name} is not known here: ignored")),
        }
        Ok(())
    }

    /// Sets `records` to the number of records to load and to work on.
    fn count_records(&mut self) -> Result<(), PropertyError> {
        let ScanLengths { least, most, .. } = self.scans;
        if least == 0 || least > most || most > ScanLengths::MOST {
            let value = format!("{least} to {most}");
            let needs = "give minscanlength and maxscanlength from 1 to 1000000, the least first";
            return Err(wrong("maxscanlength", &value, needs));
        }
        let all = self.options.records;
        if self.first == 0 && self.count.is_none() {
            return Ok(());
        }
        let count = self.count.unwrap_or_else(|| all.saturating_sub(self.first));
        if count == 0 || self.first.checked_add(count).is_none_or(|end| end > all) {
            let value = format!("{count} from {} on", self.first);
            let needs = format!("give records of the {all} that recordcount says");
            return Err(wrong("insertcount", &value, needs));
        }
        self.options.records = count;
        Ok(())
    }
}

fn wrong(name: &str, value: &str, needs: impl Into<String>) -> PropertyError {
    let (name, value) = (name.to_owned(), value.to_owned());
    PropertyError::Value { name, value, needs: needs.into() }
}

fn number<T: std::str::FromStr>(name: &str, value: &str, needs: &str) -> Result<T, PropertyError> {
    value.parse().map_err(|_| wrong(name, value, needs))
}

fn truth(name: &str, value: &str) -> Result<bool, PropertyError> {
    match value.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(wrong(name, value, "give true or false")),
    }
}

fn digits(name: &str, value: &str) -> Result<usize, PropertyError> {
    let most = KeyStyle::MAX_DIGITS;
    let needs = format!("give a number of digits from 0 to {most}");
    let digits = number(name, value, &needs)?;
    if digits <= most { Ok(digits) } else { Err(wrong(name, value, needs)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WorkloadName;

    fn settings(properties: &[&str]) -> Result<Settings, PropertyError> {
        let properties = properties.iter().map(|property| (*property).to_owned()).collect();
        Settings::new(&YcsbOptions { properties, ..YcsbOptions::default() })
    }

    #[test]
    fn ycsbs_own_files_are_its_workloads() {
        for (letter, name) in "abcdef".chars().zip(WorkloadName::ALL) {
            let file = format!("/nowhere/workloads/workload{letter}").into();
            let options = YcsbOptions { property_files: vec![file], ..YcsbOptions::default() };
            let settings = Settings::new(&options).unwrap();
            assert_eq!(settings.workloads().unwrap(), [name.into()]);
            assert_eq!((settings.options.records, settings.options.operations), (1000, 1000));
            assert_eq!((settings.options.field_count, settings.options.field_length), (10, 100));
            assert_eq!(settings.warnings, [""; 0]);
        }
    }

    #[test]
    fn single_properties_win_over_files_and_the_last_one_counts() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mine");
        let text = "recordcount=7\nfieldcount=3\nscanproportion=1\nreadproportion=0\n\
                    updateproportion=0\nmaxscanlength=9\nstatus.interval=5\n";
        std::fs::write(&file, text).unwrap();
        let properties = vec!["recordcount=8".into(), "recordcount= 9".into(), "target=50".into()];
        let options =
            YcsbOptions { property_files: vec![file], properties, ..YcsbOptions::default() };
        let settings = Settings::new(&options).unwrap();
        assert_eq!((settings.options.records, settings.options.field_count), (9, 3));
        assert_eq!((settings.scans.most, settings.rate), (9, Some(50)));
        let [workload] = settings.workloads().unwrap()[..] else { panic!("one workload") };
        assert_eq!((workload.mix.scan, workload.name), (Mix::WHOLE, "P"));
        assert_eq!(workload.distribution, Distribution::Uniform);
        let [warning] = &settings.warnings[..] else { panic!("{:?}", settings.warnings) };
        assert!(warning.contains("status.interval"), "{warning}");
    }

    #[test]
    fn a_part_of_the_records_is_loaded_from_its_first_one_on() {
        let part = settings(&["recordcount=100", "insertstart=40", "insertcount=20"]).unwrap();
        assert_eq!((part.first, part.options.records), (40, 20));
        let rest = settings(&["recordcount=100", "insertstart=40"]).unwrap();
        assert_eq!((rest.first, rest.options.records), (40, 60));
    }

    #[test]
    fn nonsense_is_refused_with_its_name_and_the_fix() {
        for (property, fix) in [
            ("recordcount=many", "recordcount=many can't be used: give a number of records"),
            ("recordcount", "give -p NAME=VALUE"),
            ("readallfields=yes", "give true or false"),
            ("requestdistribution=hotspot", "give uniform, zipfian or latest"),
            ("fieldlengthdistribution=zipfian", "give constant"),
            ("workload=site.ycsb.workloads.TimeSeriesWorkload", "only YCSB's CoreWorkload"),
            ("zeropadding=60", "from 0 to 59"),
            ("maxscanlength=0", "give minscanlength and maxscanlength"),
            ("insertcount=1000000000", "of the 100000 that recordcount says"),
            ("insertstart=18446744073709551615", "recordcount says"),
            ("readproportion=half", "give a share from 0 to 1"),
        ] {
            let message = settings(&[property]).unwrap_err().to_string();
            assert!(message.contains(fix), "{message:?} lacks {fix:?}");
        }
        let none = ["readproportion=0", "updateproportion=0"];
        let message = settings(&none).unwrap().workloads().unwrap_err().to_string();
        assert!(message.contains("one of them more than 0"), "{message}");
        let options =
            YcsbOptions { property_files: vec!["/no/file".into()], ..YcsbOptions::default() };
        let message = Settings::new(&options).unwrap_err().to_string();
        assert!(message.contains("/no/file") && message.contains("workloada"), "{message}");
    }
}
