//! The expression of `find`: parsed into a flat program in postfix order, so that nothing recurses.

use std::ffi::{OsStr, OsString};

use lanefs::{FileType, Fs, Ino, Metadata};

use crate::failure::Failure;
use crate::glob;

/// What to do with a file that is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Print,
    PrintZero,
    List,
    /// Leave out what is in the directory.
    Prune,
    /// Stop at once.
    Quit,
}

/// How a number compares: `+N`, `-N` or `N`.
#[derive(Clone, Copy, Debug)]
enum Amount {
    More(u64),
    Less(u64),
    Exactly(u64),
}

impl Amount {
    fn parse(text: &str) -> Option<Amount> {
        Some(match text.split_at_checked(1) {
            Some(("+", number)) => Amount::More(number.parse().ok()?),
            Some(("-", number)) => Amount::Less(number.parse().ok()?),
            _ => Amount::Exactly(text.parse().ok()?),
        })
    }

    fn holds(self, number: u64) -> bool {
        match self {
            Amount::More(bound) => number > bound,
            Amount::Less(bound) => number < bound,
            Amount::Exactly(bound) => number == bound,
        }
    }
}

/// How permission bits compare: `-mode`, `/mode` or `mode`.
#[derive(Clone, Copy, Debug)]
enum Bits {
    All(u16),
    Any(u16),
    Exactly(u16),
}

#[derive(Debug)]
enum Test {
    Constant(bool),
    Name {
        pattern: Vec<u8>,
        ignore_case: bool,
    },
    Path {
        pattern: Vec<u8>,
        ignore_case: bool,
    },
    Type(Vec<FileType>),
    /// A size in units of this number of bytes, rounded up.
    Size {
        amount: Amount,
        unit: u64,
    },
    Empty,
    Perm(Bits),
    Uid(Amount),
    Gid(Amount),
    Links(Amount),
    Inode(Amount),
    SameFile(Ino),
    /// Modified after this time.
    Newer(i64, u32),
    /// Age of the last modification, in units of this number of seconds, rounded down.
    Age {
        amount: Amount,
        unit: u64,
        now: i64,
    },
    Do(Action),
}

/// A step of the program: `&&` and `||` jump over their right side when the left one decides.
#[derive(Debug)]
enum Op {
    Test(Test),
    Not,
    /// Go there, keeping the value, when it is false.
    JumpIfFalse(usize),
    /// Go there, keeping the value, when it is true.
    JumpIfTrue(usize),
}

/// An expression and its bounds.
#[derive(Debug)]
pub struct Expression {
    ops: Vec<Op>,
    /// How many levels are searched.
    pub max_depth: usize,
    /// How many levels are passed over.
    pub min_depth: usize,
    /// Whether something is printed only because nothing else was said.
    prints: bool,
}

/// A file to judge.
pub struct Candidate<'a> {
    pub fs: &'a Fs,
    pub path: &'a [u8],
    pub name: &'a [u8],
    pub metadata: &'a Metadata,
}

impl Expression {
    /// Reads an expression; `-newer` and `-samefile` name files of `fs`.
    pub fn parse(words: &[OsString], fs: &Fs, now: i64) -> Result<Expression, Failure> {
        let expression = Expression {
            ops: Vec::new(),
            max_depth: usize::MAX,
            min_depth: 0,
            prints: true,
        };
        let mut parser = Parser {
            words,
            at: 0,
            fs,
            now,
            expression,
        };
        parser.run()?;
        Ok(parser.expression)
    }

    /// Adds what is to be done with a file.
    pub fn evaluate(&self, candidate: &Candidate<'_>, actions: &mut Vec<Action>) {
        let mut value = true;
        let mut at = 0;
        while let Some(op) = self.ops.get(at) {
            at += 1;
            match op {
                Op::Test(test) => value = test.holds(candidate, actions),
                Op::Not => value = !value,
                Op::JumpIfFalse(target) if !value => at = *target,
                Op::JumpIfTrue(target) if value => at = *target,
                Op::JumpIfFalse(_) | Op::JumpIfTrue(_) => {}
            }
        }
        if self.prints && value {
            actions.push(Action::Print);
        }
    }
}

impl Test {
    fn holds(&self, candidate: &Candidate<'_>, actions: &mut Vec<Action>) -> bool {
        let metadata = candidate.metadata;
        match self {
            Test::Constant(value) => *value,
            Test::Name {
                pattern,
                ignore_case,
            } => glob::matches(pattern, candidate.name, *ignore_case),
            Test::Path {
                pattern,
                ignore_case,
            } => glob::matches(pattern, candidate.path, *ignore_case),
            Test::Type(types) => types.contains(&metadata.file_type),
            Test::Size { amount, unit } => amount.holds(metadata.size.div_ceil(*unit)),
            Test::Empty => match metadata.file_type {
                FileType::Regular => metadata.size == 0,
                FileType::Directory => is_empty(candidate.fs, metadata.ino),
                _ => false,
            },
            Test::Perm(bits) => match (metadata.mode & 0o7777, bits) {
                (mode, Bits::All(bits)) => mode & bits == *bits,
                (mode, Bits::Any(bits)) => *bits == 0 || mode & bits != 0,
                (mode, Bits::Exactly(bits)) => mode == *bits,
            },
            Test::Uid(amount) => amount.holds(metadata.uid.into()),
            Test::Gid(amount) => amount.holds(metadata.gid.into()),
            Test::Links(amount) => amount.holds(metadata.nlink.into()),
            Test::Inode(amount) => amount.holds(metadata.ino.0.into()),
            Test::SameFile(ino) => metadata.ino == *ino,
            Test::Newer(seconds, nanoseconds) => {
                (metadata.mtime.seconds, metadata.mtime.nanoseconds) > (*seconds, *nanoseconds)
            }
            Test::Age { amount, unit, now } => {
                let age = u64::try_from(now.saturating_sub(metadata.mtime.seconds)).unwrap_or(0);
                amount.holds(age / unit)
            }
            Test::Do(action) => {
                actions.push(*action);
                true
            }
        }
    }
}

fn is_empty(fs: &Fs, ino: Ino) -> bool {
    let Ok(mut entries) = fs.inodes().read_dir(ino) else {
        return false;
    };
    // What can't be read is not known to be empty.
    entries.all(|entry| entry.is_ok_and(|entry| matches!(&entry.name[..], b"." | b"..")))
}

struct Parser<'a> {
    words: &'a [OsString],
    at: usize,
    fs: &'a Fs,
    now: i64,
    expression: Expression,
}

/// What is still open on the way through the words.
enum Open {
    /// `(`, with how many `!` stand before it.
    Group(usize),
    /// A jump whose target is the end of its right side.
    And(usize),
    Or(usize),
}

impl Parser<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        let mut open: Vec<Open> = Vec::new();
        let mut needs_operand = true;
        let mut nots = 0;
        let mut empty = true;
        while let Some(word) = self.words.get(self.at) {
            let word = word.to_string_lossy().into_owned();
            self.at += 1;
            if self.bound(&word)? {
                continue;
            }
            empty = false;
            match word.as_str() {
                "-a" | "-and" | "-o" | "-or" | ")" if needs_operand => {
                    return Err(Failure::usage(format!(
                        "find: a test is missing before `{word}`"
                    )));
                }
                "-a" | "-and" => {
                    self.begin_and(&mut open);
                    needs_operand = true;
                }
                "-o" | "-or" => {
                    self.close(&mut open, true);
                    self.begin_or(&mut open);
                    needs_operand = true;
                }
                ")" => {
                    self.close(&mut open, true);
                    let Some(Open::Group(outer_nots)) = open.pop() else {
                        return Err(Failure::usage("find: `)` without `(`"));
                    };
                    self.negate(outer_nots);
                }
                _ => {
                    if !needs_operand {
                        self.begin_and(&mut open);
                        needs_operand = true;
                    }
                    match word.as_str() {
                        "!" | "-not" => nots += 1,
                        "(" => open.push(Open::Group(std::mem::take(&mut nots))),
                        _ => {
                            let test = self.test(&word)?;
                            self.expression.ops.push(Op::Test(test));
                            self.negate(std::mem::take(&mut nots));
                            needs_operand = false;
                        }
                    }
                }
            }
        }
        if needs_operand && !empty {
            return Err(Failure::usage(
                "find: the expression ends where a test is missing",
            ));
        }
        self.close(&mut open, true);
        if open.is_empty() {
            Ok(())
        } else {
            Err(Failure::usage("find: `(` without `)`"))
        }
    }

    fn negate(&mut self, nots: usize) {
        if nots % 2 == 1 {
            self.expression.ops.push(Op::Not);
        }
    }

    fn begin_and(&mut self, open: &mut Vec<Open>) {
        self.close(open, false);
        open.push(Open::And(self.expression.ops.len()));
        self.expression.ops.push(Op::JumpIfFalse(0));
    }

    fn begin_or(&mut self, open: &mut Vec<Open>) {
        open.push(Open::Or(self.expression.ops.len()));
        self.expression.ops.push(Op::JumpIfTrue(0));
    }

    /// Ends what binds at least as strongly: `-a` alone, or `-o` too, up to the group's beginning.
    fn close(&mut self, open: &mut Vec<Open>, or_too: bool) {
        let end = self.expression.ops.len();
        while let Some(last) = open.last() {
            match last {
                Open::And(jump) => self.expression.ops[*jump] = Op::JumpIfFalse(end),
                Open::Or(jump) if or_too => self.expression.ops[*jump] = Op::JumpIfTrue(end),
                Open::Or(_) | Open::Group(_) => return,
            }
            open.pop();
        }
    }

    /// Takes a word that bounds the search rather than tests.
    fn bound(&mut self, word: &str) -> Result<bool, Failure> {
        match word {
            "-maxdepth" => self.expression.max_depth = self.number(word)?,
            "-mindepth" => self.expression.min_depth = self.number(word)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn test(&mut self, word: &str) -> Result<Test, Failure> {
        Ok(match word {
            "-true" => Test::Constant(true),
            "-false" => Test::Constant(false),
            "-name" | "-iname" => Test::Name {
                pattern: self.bytes(word)?,
                ignore_case: word == "-iname",
            },
            "-path" | "-ipath" | "-wholename" => Test::Path {
                pattern: self.bytes(word)?,
                ignore_case: word == "-ipath",
            },
            "-type" => Test::Type(types(&self.text(word)?)?),
            "-size" => size(&self.text(word)?)?,
            "-empty" => Test::Empty,
            "-perm" => Test::Perm(perm(&self.text(word)?)?),
            "-uid" => Test::Uid(self.amount(word)?),
            "-gid" => Test::Gid(self.amount(word)?),
            "-links" => Test::Links(self.amount(word)?),
            "-inum" => Test::Inode(self.amount(word)?),
            "-samefile" => Test::SameFile(self.file(word)?.ino),
            "-newer" => {
                let time = self.file(word)?.mtime;
                Test::Newer(time.seconds, time.nanoseconds)
            }
            "-mtime" => Test::Age {
                amount: self.amount(word)?,
                unit: 86_400,
                now: self.now,
            },
            "-mmin" => Test::Age {
                amount: self.amount(word)?,
                unit: 60,
                now: self.now,
            },
            "-print" => self.action(Action::Print),
            "-print0" => self.action(Action::PrintZero),
            "-ls" => self.action(Action::List),
            "-prune" => Test::Do(Action::Prune),
            "-quit" => self.action(Action::Quit),
            _ => {
                let failure = Failure::usage(format!("find: unknown test `{word}`"));
                return Err(failure
                    .hint("lanefs find --help lists them; other options stand before the image"));
            }
        })
    }

    fn action(&mut self, action: Action) -> Test {
        self.expression.prints &= action == Action::Quit;
        Test::Do(action)
    }

    fn word(&mut self, after: &str) -> Result<&OsStr, Failure> {
        let word = self.words.get(self.at);
        self.at += 1;
        word.map(OsString::as_os_str)
            .ok_or_else(|| Failure::usage(format!("find: `{after}` needs a value")))
    }

    fn text(&mut self, after: &str) -> Result<String, Failure> {
        Ok(self.word(after)?.to_string_lossy().into_owned())
    }

    fn bytes(&mut self, after: &str) -> Result<Vec<u8>, Failure> {
        Ok(self.word(after)?.as_encoded_bytes().to_vec())
    }

    fn number(&mut self, after: &str) -> Result<usize, Failure> {
        let text = self.text(after)?;
        text.parse()
            .map_err(|_| Failure::usage(format!("find: `{after}` needs a number, not `{text}`")))
    }

    fn amount(&mut self, after: &str) -> Result<Amount, Failure> {
        let text = self.text(after)?;
        Amount::parse(&text).ok_or_else(|| {
            Failure::usage(format!("find: `{after}` needs N, +N or -N, not `{text}`"))
        })
    }

    /// A file of the image, named by its path in it.
    fn file(&mut self, after: &str) -> Result<Metadata, Failure> {
        let path = self.word(after)?.to_owned();
        self.fs
            .metadata(&path)
            .map_err(|error| Failure::new(error).at(format_args!("find: {after}")))
    }
}

fn types(text: &str) -> Result<Vec<FileType>, Failure> {
    let one = |letter: &str| match letter {
        "f" => Some(FileType::Regular),
        "d" => Some(FileType::Directory),
        "l" => Some(FileType::Symlink),
        "c" => Some(FileType::CharDevice),
        "b" => Some(FileType::BlockDevice),
        "p" => Some(FileType::Fifo),
        "s" => Some(FileType::Socket),
        _ => None,
    };
    let types: Option<Vec<FileType>> = text.split(',').map(one).collect();
    types
        .ok_or_else(|| Failure::usage(format!("find: `-type {text}`: the types are f d l c b p s")))
}

fn size(text: &str) -> Result<Test, Failure> {
    let unit = match text.chars().last() {
        Some('c') => 1,
        Some('w') => 2,
        Some('k') => 1 << 10,
        Some('M') => 1 << 20,
        Some('G') => 1 << 30,
        _ => 512,
    };
    let number = text.trim_end_matches(['b', 'c', 'w', 'k', 'M', 'G']);
    let wrong = || {
        Failure::usage(format!(
            "find: `-size {text}`: write N, +N or -N with one of c w b k M G"
        ))
    };
    Ok(Test::Size {
        amount: Amount::parse(number).ok_or_else(wrong)?,
        unit,
    })
}

fn perm(text: &str) -> Result<Bits, Failure> {
    let number = |digits: &str| {
        u16::from_str_radix(digits, 8)
            .ok()
            .filter(|bits| *bits <= 0o7777)
    };
    let bits = match text.split_at_checked(1) {
        Some(("-", digits)) => number(digits).map(Bits::All),
        Some(("/", digits)) => number(digits).map(Bits::Any),
        _ => number(text).map(Bits::Exactly),
    };
    bits.ok_or_else(|| {
        Failure::usage(format!(
            "find: `-perm {text}`: write the bits in octal, as 644, -222 or /111"
        ))
    })
}
