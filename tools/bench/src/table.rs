//! What a measurement gives: a table of cells, each with all its samples.

/// One measurement.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sample {
    /// In the table's unit.
    pub value: f64,
    /// Other figures of the same run, by name and unit (`CPU us/operation`).
    pub details: Vec<(&'static str, f64)>,
    /// What the file system counted meanwhile, by operation.
    pub counters: Vec<(&'static str, f64)>,
}

/// A row's samples in a column, one for each round that counts; none where there is nothing to measure.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Cell {
    /// In the order of the rounds.
    pub samples: Vec<Sample>,
}

/// The middle of some values, and how far they lie apart.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Spread {
    /// The middle one; of an even number, the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Spread {
    /// Of these values; `None` of none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (least, greatest) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[half - 1], values[half]),
            _ => values[half],
        };
        Some(Spread {
            median,
            least,
            greatest,
        })
    }
}

impl Cell {
    /// A cell of one sample without details.
    #[must_use]
    pub fn of(value: f64) -> Cell {
        Cell {
            samples: vec![Sample {
                value,
                ..Sample::default()
            }],
        }
    }

    /// The values' spread.
    #[must_use]
    pub fn spread(&self) -> Option<Spread> {
        Spread::of(self.samples.iter().map(|sample| sample.value))
    }

    /// The spread of a detail.
    #[must_use]
    pub fn detail(&self, name: &str) -> Option<Spread> {
        Spread::of(self.samples.iter().filter_map(|sample| {
            let found = sample.details.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| *value)
        }))
    }

    /// The median of a counter, 0 where it did not count.
    #[must_use]
    pub fn counter(&self, name: &str) -> f64 {
        let values = self.samples.iter().map(|sample| {
            let found = sample.counters.iter().find(|(known, _)| *known == name);
            found.map_or(0.0, |(_, value)| *value)
        });
        Spread::of(values).map_or(0.0, |spread| spread.median)
    }
}

/// What is compared: a file system, or a form of a mechanism.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its name.
    pub label: String,
    /// The way that a call takes, or where the figures come from.
    pub way: String,
}

/// How a table is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableShape {
    /// Rows are numbers of workers: lines.
    Lines,
    /// Rows are kinds of work: bars.
    Bars,
    /// Columns are a ratio and the ends of its interval: dots with lines.
    Intervals,
    /// Not at all: rows have nothing in common.
    Figures,
}

/// A table.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// A short name, for files: letters, digits, `-`.
    pub key: String,
    /// Its title.
    pub title: String,
    /// What was measured, in a sentence or two.
    pub about: String,
    /// What values count: `operations/s`, `s`.
    pub unit: &'static str,
    /// Whether less is better.
    pub less_is_better: bool,
    /// What rows are: `workers`.
    pub rows_are: &'static str,
    /// Their names.
    pub rows: Vec<String>,
    /// What is compared.
    pub columns: Vec<Column>,
    /// By row, then by column.
    pub cells: Vec<Vec<Cell>>,
    /// What a reader should know, and what follows from the figures.
    pub notes: Vec<String>,
    /// How it is drawn.
    pub shape: TableShape,
}

impl Table {
    /// An empty table with as many cells as it needs.
    #[must_use]
    pub fn new(
        key: &str,
        title: &str,
        about: &str,
        rows: Vec<String>,
        columns: Vec<Column>,
    ) -> Table {
        let cells = vec![vec![Cell::default(); columns.len()]; rows.len()];
        Table {
            key: key.into(),
            title: title.into(),
            about: about.into(),
            unit: "operations/s",
            less_is_better: false,
            rows_are: "workers",
            rows,
            columns,
            cells,
            notes: Vec::new(),
            shape: TableShape::Lines,
        }
    }

    /// The same with values in seconds, in bars, by kind of work.
    #[must_use]
    pub fn in_seconds(self, rows_are: &'static str) -> Table {
        Table {
            unit: "s",
            less_is_better: true,
            rows_are,
            shape: TableShape::Bars,
            ..self
        }
    }

    /// The names of all details, in the order in which they came.
    #[must_use]
    pub fn detail_names(&self) -> Vec<&'static str> {
        self.names(|sample| &sample.details)
    }

    /// The names of all counters that counted anything, in the order in which they came.
    #[must_use]
    pub fn counter_names(&self) -> Vec<&'static str> {
        self.names(|sample| &sample.counters)
    }

    fn names(&self, of: impl Fn(&Sample) -> &[(&'static str, f64)]) -> Vec<&'static str> {
        let mut names = Vec::new();
        let samples = self.cells.iter().flatten().flat_map(|cell| &cell.samples);
        for (name, value) in samples.flat_map(of) {
            if *value != 0.0 && !names.contains(name) {
                names.push(*name);
            }
        }
        names
    }
}
