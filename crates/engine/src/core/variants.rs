//! Which form of each mechanism a file system runs with: `name=value`, as a mount option, or later on the live file
//! system ([`crate::InodeFs::choose`]). All forms leave the same images, may be mixed and may follow one another; they
//! differ in what threads wait for and where things are put.
//!
//! What is planned and not there is refused by its name.

use core::fmt;
use core::marker::PhantomData;

use sync::{CachePadded, Hint};

/// A form of a mechanism, chosen by one option.
pub(crate) trait Form: Copy + PartialEq + Default + 'static {
    /// The option's name.
    const NAME: &'static str;
    /// The forms that are there with their values, the default first.
    const THERE: &'static [(&'static str, Self)];
    /// Forms that only a measurement may choose, in the options with which it opens a device in memory; not by name.
    const MEASURED: &'static [(&'static str, Self)];
    /// Values of forms that are planned.
    const PLANNED: &'static [&'static str];

    fn parse(value: &str) -> Option<Self> {
        let known = Self::THERE.iter().find(|(name, _)| *name == value);
        known.map(|(_, form)| *form)
    }

    fn value(self) -> String {
        let known = Self::all().find(|(_, form)| *form == self);
        known.map_or_else(String::new, |(name, _)| (*name).to_owned())
    }

    fn all() -> impl Iterator<Item = &'static (&'static str, Self)> {
        Self::THERE.iter().chain(Self::MEASURED)
    }

    fn values() -> Vec<&'static str> {
        Self::THERE.iter().map(|(name, _)| *name).collect()
    }

    /// The values that can be chosen, for the message about a value that is not one of them.
    fn there() -> String {
        Self::values().join(", ")
    }

    fn measured() -> Vec<&'static str> {
        Self::MEASURED.iter().map(|(name, _)| *name).collect()
    }

    /// The form as a word, which [`Form::of_word`] reads.
    fn word(self) -> u32 {
        let place = Self::all().position(|(_, form)| *form == self);
        // There are a few.
        place.unwrap_or(0) as u32
    }

    fn of_word(word: u32) -> Self {
        let known = Self::all().nth(word as usize);
        known.map_or_else(Self::default, |(_, form)| *form)
    }
}

/// The form that a live mechanism uses now. An operation under way while it changes ends in the form that it read.
pub(crate) struct Chosen<F> {
    /// [written when a form is chosen, so its line stays shared]
    word: CachePadded<Hint<u32>>,
    form: PhantomData<F>,
}

impl<F: Form> Chosen<F> {
    pub(crate) fn new(form: F) -> Chosen<F> {
        Chosen {
            word: CachePadded::new(Hint::new(form.word())),
            form: PhantomData,
        }
    }

    pub(crate) fn get(&self) -> F {
        // Every form works on the same structures, so nothing else must be seen with it.
        F::of_word(self.word.get())
    }

    pub(crate) fn set(&self, form: F) {
        self.word.set(form.word());
    }
}

macro_rules! forms {
    (
        $(#[$about:meta])* $name:ident: $option:literal {
            $(#[$first_about:meta])* $first:ident = $first_value:literal,
            $($(#[$form_about:meta])* $form:ident = $value:literal,)*
        }
        $(measured { $($(#[$measured_about:meta])* $measured:ident = $measured_value:literal,)* })?
        planned $planned:expr
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub enum $name {
            $(#[$first_about])*
            #[default]
            $first,
            $($(#[$form_about])* $form,)*
            $($($(#[$measured_about])* $measured,)*)?
        }

        impl Form for $name {
            const NAME: &'static str = $option;
            const THERE: &'static [(&'static str, $name)] =
                &[($first_value, $name::$first) $(, ($value, $name::$form))*];
            const MEASURED: &'static [(&'static str, $name)] =
                &[$($(($measured_value, $name::$measured)),*)?];
            const PLANNED: &'static [&'static str] = &$planned;
        }
    };
}

forms! {
    /// Where orphans are noted down.
    OrphanForm: "orphan" {
        /// In the orphan file's slots, without a lock; on the list when they are full (`lockless`).
        Lockless = "lockless",
        /// The same with one lock around the slots (`locked`).
        Locked = "locked",
        /// On the superblock's list only (`list`).
        List = "list",
    }
    measured {
        /// Nowhere (`none`): a crash loses the blocks of what was under way, and leaves inodes without names.
        Nothing = "none",
    }
    planned []
}

forms! {
    /// What an allocation does about a group whose lock another holds.
    GroupLock: "group_lock" {
        /// It looks elsewhere, and waits only when nothing else is left (`try`).
        Try = "try",
        /// It waits for it (`wait`).
        Wait = "wait",
    } planned []
}

forms! {
    /// Where the first blocks of large files go.
    StreamGoal: "stream_goal" {
        /// Into the group of the last ones of a large file whose number has the same hash (`hashed`).
        Hashed = "hashed",
        /// Into the inode's group (`inode`).
        Inode = "inode",
        /// Behind the last ones of any large file (`global`).
        Global = "global",
    } planned []
}

forms! {
    /// In which order groups are looked through for free blocks.
    GroupScan: "mb_optimize_scan" {
        /// Those that have free runs of the order that is wanted, from the goal's on (`1`).
        Ordered = "1",
        /// One after the other, from the goal's on (`0`).
        Linear = "0",
    } planned []
}

forms! {
    /// Whether blocks are kept for files that grow.
    Preallocation: "prealloc" {
        /// For each file, by its size, and for each thread's small files (`on`).
        On = "on",
        /// None: each write takes what it needs (`off`).
        Off = "off",
    } planned []
}

forms! {
    /// How an inode in memory is found.
    InodeLookup: "inode_lookup" {
        /// Without a lock (`rcu`).
        Rcu = "rcu",
        /// Under the table's one lock (`locked`).
        Locked = "locked",
    } planned []
}

/// How many inode numbers are set aside for a directory and its files.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum DirReserve {
    /// None until a directory has its second file, then a quarter of the number of its names (`auto`).
    #[default]
    Auto,
    /// None (`off`).
    Off,
    /// 16 (`low`).
    Low,
    /// 64 (`normal`).
    Normal,
    /// 128 (`high`).
    High,
    /// This number of inodes, [`DirReserve::LEAST`] to [`DirReserve::MOST`].
    Numbers(u16),
}

impl DirReserve {
    /// The fewest numbers that can be asked for.
    pub const LEAST: u16 = 2;
    /// The most.
    pub const MOST: u16 = 4096;

    /// How many numbers a directory is given, if that does not depend on the directory.
    pub(crate) fn numbers(self) -> Option<u32> {
        match self {
            DirReserve::Auto | DirReserve::Off => None,
            DirReserve::Low => Some(16),
            DirReserve::Normal => Some(64),
            DirReserve::High => Some(128),
            DirReserve::Numbers(numbers) => Some(numbers.into()),
        }
    }
}

/// Above the words of [`DirReserve`]'s named forms.
const NUMBERS_WORD: u32 = 16;

impl Form for DirReserve {
    const NAME: &'static str = "dir_ireserve";
    const THERE: &'static [(&'static str, DirReserve)] = &[
        ("auto", DirReserve::Auto),
        ("off", DirReserve::Off),
        ("low", DirReserve::Low),
        ("normal", DirReserve::Normal),
        ("high", DirReserve::High),
        // Stands for all numbers.
        ("24", DirReserve::Numbers(24)),
    ];
    const MEASURED: &'static [(&'static str, DirReserve)] = &[];
    const PLANNED: &'static [&'static str] = &[];

    fn parse(value: &str) -> Option<DirReserve> {
        let known = Self::THERE.iter().find(|(name, _)| *name == value);
        let numbers = || {
            let digits = value.bytes().all(|byte| byte.is_ascii_digit());
            let numbers = value.parse().ok().filter(|_| digits)?;
            let is_there = (DirReserve::LEAST..=DirReserve::MOST).contains(&numbers);
            is_there.then_some(DirReserve::Numbers(numbers))
        };
        known.map(|(_, form)| *form).or_else(numbers)
    }

    fn value(self) -> String {
        match self {
            DirReserve::Numbers(numbers) => numbers.to_string(),
            named => {
                let known = Self::THERE.iter().find(|(_, form)| *form == named);
                known.map_or_else(String::new, |(name, _)| (*name).to_owned())
            }
        }
    }

    fn there() -> String {
        let named = |(name, form): &(&'static str, DirReserve)| {
            (!matches!(form, DirReserve::Numbers(_))).then_some(*name)
        };
        let names: Vec<_> = Self::THERE.iter().filter_map(named).collect();
        let (least, most) = (DirReserve::LEAST, DirReserve::MOST);
        format!("{}, or {least} to {most}", names.join(", "))
    }

    fn word(self) -> u32 {
        match self {
            DirReserve::Numbers(numbers) => NUMBERS_WORD + u32::from(numbers),
            // There are a few.
            named => Self::THERE
                .iter()
                .position(|(_, form)| *form == named)
                .unwrap_or(0) as u32,
        }
    }

    fn of_word(word: u32) -> DirReserve {
        match word.checked_sub(NUMBERS_WORD) {
            // It was a number of 16 bits.
            Some(numbers) => DirReserve::Numbers(numbers as u16),
            None => Self::THERE
                .get(word as usize)
                .map_or_else(Self::default, |(_, form)| *form),
        }
    }
}

forms! {
    /// How the fsync log changes what it holds of an inode that was logged before.
    LogUpdate: "log_update" {
        /// In place, with one leaf of its tree locked for writing (`inplace`).
        InPlace = "inplace",
        /// As if it were not there: the leaf's parent is locked too, and a full leaf splits (`insert`).
        Insert = "insert",
    } planned []
}

forms! {
    /// Whether an fsync that finds the last full commit not written home yet writes it home, so that the log can be
    /// used.
    LogUse: "log_use" {
        /// Where logs served enough fsyncs lately; else it is a full commit (`auto`).
        Auto = "auto",
        /// Each time (`always`).
        Always = "always",
    } planned []
}

/// The forms that are used.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Variants {
    /// Where orphans are noted down.
    pub orphan: OrphanForm,
    /// What an allocation does about a group whose lock another holds.
    pub group_lock: GroupLock,
    /// Where the first blocks of large files go.
    pub stream_goal: StreamGoal,
    /// In which order groups are looked through for free blocks.
    pub group_scan: GroupScan,
    /// Whether blocks are kept for files that grow.
    pub prealloc: Preallocation,
    /// How an inode in memory is found.
    pub inode_lookup: InodeLookup,
    /// How many inode numbers are set aside for a directory and its files.
    pub dir_ireserve: DirReserve,
    /// How the fsync log changes what it holds.
    pub log_update: LogUpdate,
    /// Whether an fsync makes what the log needs.
    pub log_use: LogUse,
}

/// A mechanism, as an option.
struct Mechanism {
    name: &'static str,
    /// Values of the forms that are there, the default's first.
    values: fn() -> Vec<&'static str>,
    /// What can be chosen, in words.
    there: fn() -> String,
    /// Values of forms that only measurements choose.
    measured: fn() -> Vec<&'static str>,
    planned: &'static [&'static str],
    get: fn(&Variants) -> String,
    /// Whether there is such a form.
    set: fn(&mut Variants, &str) -> bool,
}

macro_rules! mechanism {
    ($form:ty, $field:ident) => {
        Mechanism {
            name: <$form as Form>::NAME,
            values: <$form as Form>::values,
            there: <$form as Form>::there,
            measured: <$form as Form>::measured,
            planned: <$form as Form>::PLANNED,
            get: |variants| Form::value(variants.$field),
            set: |variants, value| {
                let form = <$form as Form>::parse(value);
                variants.$field = form.unwrap_or(variants.$field);
                form.is_some()
            },
        }
    };
}

const MECHANISMS: [Mechanism; 9] = [
    mechanism!(OrphanForm, orphan),
    mechanism!(GroupLock, group_lock),
    mechanism!(StreamGoal, stream_goal),
    mechanism!(GroupScan, group_scan),
    mechanism!(Preallocation, prealloc),
    mechanism!(InodeLookup, inode_lookup),
    mechanism!(DirReserve, dir_ireserve),
    mechanism!(LogUpdate, log_update),
    mechanism!(LogUse, log_use),
];

/// Why a form can't be chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VariantError {
    /// No mechanism has this name.
    Unknown(String),
    /// The mechanism has no such form, or not yet.
    Value {
        /// What was asked for.
        option: String,
        /// Whether it is planned.
        is_planned: bool,
        /// Whether it is there, for measurements on a device in memory only.
        is_measured: bool,
        /// The values, separated by commas.
        there: String,
    },
}

impl fmt::Display for VariantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VariantError::Unknown(option) => write!(f, "{option} chooses no mechanism"),
            VariantError::Value {
                option,
                is_planned,
                is_measured,
                there,
            } => {
                let when = match (is_planned, is_measured) {
                    (true, _) => "not there yet",
                    (_, true) => "for measurements on a device in memory",
                    _ => "unknown",
                };
                write!(f, "{option} is {when}; there is {there}")
            }
        }
    }
}

impl core::error::Error for VariantError {}

impl fmt::Display for Variants {
    /// As mount options: `name=value`, separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self
            .options()
            .map(|(name, value)| format!("{name}={value}"));
        f.write_str(&options.collect::<Vec<_>>().join(","))
    }
}

impl Variants {
    /// Whether an option, with or without its value, is about a mechanism.
    #[must_use]
    pub fn knows(option: &str) -> bool {
        let name = option.split('=').next();
        MECHANISMS.iter().any(|known| Some(known.name) == name)
    }

    /// Every mechanism's option with the values of the forms that are there, the default's first.
    pub fn choices() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
        MECHANISMS
            .iter()
            .map(|known| (known.name, (known.values)()))
    }

    /// Every mechanism's option with all that it takes, in words, the default first: `choices` has one number in place
    /// of many.
    pub fn all_there() -> impl Iterator<Item = (&'static str, String)> {
        MECHANISMS.iter().map(|known| (known.name, (known.there)()))
    }

    /// Every mechanism's option with its value.
    pub fn options(&self) -> impl Iterator<Item = (&'static str, String)> {
        MECHANISMS
            .iter()
            .map(|known| (known.name, (known.get)(self)))
    }

    /// Chooses a form by `name=value`.
    ///
    /// # Errors
    /// What can't be chosen, by name.
    pub fn set(&mut self, option: &str) -> Result<(), VariantError> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let known = MECHANISMS.iter().find(|known| known.name == name);
        let known = known.ok_or_else(|| VariantError::Unknown(option.to_owned()))?;
        if (known.set)(self, value) {
            return Ok(());
        }
        Err(VariantError::Value {
            option: option.to_owned(),
            is_planned: known.planned.contains(&value),
            is_measured: (known.measured)().contains(&value),
            there: (known.there)(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_chosen_and_what_is_not_there_is_refused_by_name() {
        for mechanism in &MECHANISMS {
            let mut variants = Variants::default();
            let default = (mechanism.values)()[0];
            assert_eq!((mechanism.get)(&variants), default);
            for value in (mechanism.values)() {
                let option = format!("{}={value}", mechanism.name);
                assert!(Variants::knows(&option));
                variants.set(&option).unwrap();
                assert!(variants.to_string().split(',').any(|said| said == option));
            }
            for value in mechanism.planned {
                let option = format!("{}={value}", mechanism.name);
                let text = variants.set(&option).unwrap_err().to_string();
                assert!(text.contains(&option) && text.contains("yet"), "{text}");
            }
            for value in (mechanism.measured)() {
                let option = format!("{}={value}", mechanism.name);
                let text = variants.set(&option).unwrap_err().to_string();
                assert!(
                    text.contains(&option) && text.contains("in memory"),
                    "{text}"
                );
                assert!(!(mechanism.values)().contains(&value));
            }
            assert!(variants.set(mechanism.name).is_err());
        }
        let mut variants = Variants::default();
        variants.set("orphan=list").unwrap();
        assert_eq!(variants.orphan, OrphanForm::List);
        variants.orphan = OrphanForm::Nothing;
        assert!(variants.to_string().starts_with("orphan=none,"));
        assert_eq!(
            OrphanForm::of_word(OrphanForm::Nothing.word()),
            OrphanForm::Nothing
        );
        assert!(!Variants::knows("commit=5") && variants.set("commit=5").is_err());
        let text = variants.set("orphan=file").unwrap_err().to_string();
        let there = OrphanForm::values().join(", ");
        assert_eq!(text, format!("orphan=file is unknown; there is {there}"));
        let text = variants.set("dir_ireserve=5000").unwrap_err().to_string();
        assert!(text.ends_with("there is auto, off, low, normal, high, or 2 to 4096"));
        let mut there = Variants::all_there();
        let numbers = there.find(|(name, _)| *name == "dir_ireserve");
        assert!(numbers.unwrap().1.ends_with("high, or 2 to 4096"));
    }
}
