//! Which form of each mechanism a file system uses: `name=value`, as a mount option, or later on the live file system
//! ([`crate::InodeFs::choose`]). All forms leave the same structures on disk, may be combined and may follow one
//! another; they differ in what threads wait for and in where blocks and inodes are put.
//!
//! A form that is planned but does not exist yet is refused by name.

use core::fmt;
use core::marker::PhantomData;

use sync::{CachePadded, Hint};

/// A form of a mechanism, chosen by one option.
pub(crate) trait Form: Copy + PartialEq + Default + 'static {
    /// The option's name.
    const NAME: &'static str;
    /// The existing forms with their values, the default first.
    const THERE: &'static [(&'static str, Self)];
    /// Forms that exist only for measurements, whose options choose them when they open a device in memory; not by
    /// name.
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
        // A mechanism has only a few forms.
        place.unwrap_or(0) as u32
    }

    fn of_word(word: u32) -> Self {
        let known = Self::all().nth(word as usize);
        known.map_or_else(Self::default, |(_, form)| *form)
    }
}

/// The form that a live mechanism uses now. An operation that is under way during a switch ends in the form that it
/// read.
pub(crate) struct Chosen<F> {
    /// [written only when a form is chosen, so its cache line stays shared]
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
        // Every form works on the same structures, so the word publishes nothing but itself.
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
    /// Where orphans are recorded.
    OrphanForm: "orphan" {
        /// In the orphan file's slots, without a lock; on the list when they are full (`lockless`).
        Lockless = "lockless",
        /// In the orphan file's slots, with one lock around them (`locked`).
        Locked = "locked",
        /// On the superblock's list only (`list`).
        List = "list",
    }
    measured {
        /// Nowhere (`none`). After a crash, the blocks of deletions that were under way are lost, and inodes without
        /// names remain.
        Nothing = "none",
    }
    planned []
}

forms! {
    /// What an allocation does about a group that another thread has locked.
    GroupLock: "group_lock" {
        /// It tries other groups, and waits only when no other group is left (`try`).
        Try = "try",
        /// It waits for the lock (`wait`).
        Wait = "wait",
    } planned []
}

forms! {
    /// Where the first blocks of large files are put.
    StreamGoal: "stream_goal" {
        /// Into the group where a large file with the same hash of its number last got blocks (`hashed`).
        Hashed = "hashed",
        /// Into the inode's group (`inode`).
        Inode = "inode",
        /// After the last blocks that any large file got (`global`).
        Global = "global",
    } planned []
}

forms! {
    /// The order in which groups are searched for free blocks.
    GroupScan: "mb_optimize_scan" {
        /// Groups that have free runs of the wanted order, from the goal's group on (`1`).
        Ordered = "1",
        /// All groups, one after the other, from the goal's group on (`0`).
        Linear = "0",
    } planned []
}

forms! {
    /// Whether blocks are kept for files that grow.
    Preallocation: "prealloc" {
        /// For each file, by its size, and for each thread's small files (`on`).
        On = "on",
        /// Not at all: each write takes what it needs (`off`).
        Off = "off",
    } planned []
}

forms! {
    /// How an inode in memory is found.
    InodeLookup: "inode_lookup" {
        /// Without a lock (`rcu`).
        Rcu = "rcu",
        /// Under one lock for the whole table (`locked`).
        Locked = "locked",
    } planned []
}

/// How many inode numbers are set aside for a directory and its files.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum DirReserve {
    /// Reserves nothing until a directory has its second file, then a quarter of the number of its names (`auto`).
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
    /// The smallest number that can be chosen.
    pub const LEAST: u16 = 2;
    /// The largest number that can be chosen.
    pub const MOST: u16 = 4096;

    /// The number for every directory, if it does not depend on the directory.
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

/// Numbers are stored above the words of [`DirReserve`]'s named forms.
const NUMBERS_WORD: u32 = 16;

impl Form for DirReserve {
    const NAME: &'static str = "dir_ireserve";
    const THERE: &'static [(&'static str, DirReserve)] = &[
        ("auto", DirReserve::Auto),
        ("off", DirReserve::Off),
        ("low", DirReserve::Low),
        ("normal", DirReserve::Normal),
        ("high", DirReserve::High),
        // An example, which stands for all numbers.
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
            // There are only a few named forms.
            named => Self::THERE
                .iter()
                .position(|(_, form)| *form == named)
                .unwrap_or(0) as u32,
        }
    }

    fn of_word(word: u32) -> DirReserve {
        match word.checked_sub(NUMBERS_WORD) {
            // The word was made from a number of 16 bits.
            Some(numbers) => DirReserve::Numbers(numbers as u16),
            None => Self::THERE
                .get(word as usize)
                .map_or_else(Self::default, |(_, form)| *form),
        }
    }
}

forms! {
    /// How the fsync log changes the state that it holds of an inode that was logged before.
    LogUpdate: "log_update" {
        /// In place, with one leaf of its tree locked for writing (`inplace`).
        InPlace = "inplace",
        /// As for a new inode: the leaf's parent is locked too, and a full leaf is split (`insert`).
        Insert = "insert",
    } planned []
}

forms! {
    /// What an fsync does if the last full commit is not written home yet, so that the log can't be used.
    LogUse: "log_use" {
        /// Writes it home where logs served enough fsyncs lately, else makes a full commit (`auto`).
        Auto = "auto",
        /// Always writes it home (`always`).
        Always = "always",
    } planned []
}

/// The form that is used of each mechanism.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Variants {
    /// Where orphans are recorded.
    pub orphan: OrphanForm,
    /// What an allocation does about a group that another thread has locked.
    pub group_lock: GroupLock,
    /// Where the first blocks of large files are put.
    pub stream_goal: StreamGoal,
    /// The order in which groups are searched for free blocks.
    pub group_scan: GroupScan,
    /// Whether blocks are kept for files that grow.
    pub prealloc: Preallocation,
    /// How an inode in memory is found.
    pub inode_lookup: InodeLookup,
    /// How many inode numbers are set aside for a directory and its files.
    pub dir_ireserve: DirReserve,
    /// How the fsync log changes the state that it holds of an inode.
    pub log_update: LogUpdate,
    /// What an fsync does if the last full commit is not written home yet.
    pub log_use: LogUse,
}

/// A mechanism and its option.
struct Mechanism {
    name: &'static str,
    /// Values of the existing forms, the default's first.
    values: fn() -> Vec<&'static str>,
    /// What can be chosen, in words.
    there: fn() -> String,
    /// Values of forms that only measurements choose.
    measured: fn() -> Vec<&'static str>,
    planned: &'static [&'static str],
    get: fn(&Variants) -> String,
    /// Chooses the form with this value; returns whether it exists.
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
    /// The mechanism does not have this form, or not yet.
    Value {
        /// The option, as the caller wrote it.
        option: String,
        /// Whether the form is planned.
        is_planned: bool,
        /// Whether the form exists only for measurements on a device in memory.
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
    /// Whether an option, with or without its value, chooses a form of a mechanism.
    #[must_use]
    pub fn knows(option: &str) -> bool {
        let name = option.split('=').next();
        MECHANISMS.iter().any(|known| Some(known.name) == name)
    }

    /// Every mechanism's option with the values of its existing forms, the default's first.
    pub fn choices() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
        MECHANISMS
            .iter()
            .map(|known| (known.name, (known.values)()))
    }

    /// Every mechanism's option with all values that it takes, in words, the default first. Where an option takes any
    /// number of a range, [`Variants::choices`] has one example.
    pub fn all_there() -> impl Iterator<Item = (&'static str, String)> {
        MECHANISMS.iter().map(|known| (known.name, (known.there)()))
    }

    /// Every mechanism's option with the value that is used.
    pub fn options(&self) -> impl Iterator<Item = (&'static str, String)> {
        MECHANISMS
            .iter()
            .map(|known| (known.name, (known.get)(self)))
    }

    /// Chooses a form by `name=value`.
    ///
    /// # Errors
    /// When the option does not exist or does not take this value.
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
