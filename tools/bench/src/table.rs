//! The result of a measurement: a table of cells, each with all its samples.

/// One measurement.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sample {
    /// The value in the table's unit.
    pub value: f64,
    /// Other figures of the same run, by name and unit (`CPU us/operation`).
    pub details: Vec<(&'static str, f64)>,
    /// What the file system counted meanwhile, per operation.
    pub counters: Vec<(&'static str, f64)>,
}

/// The samples of a row and column, one for each round that counts; none if nothing can be measured there.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Cell {
    /// The samples in the order of the rounds.
    pub samples: Vec<Sample>,
}

/// The median of some values, and their range.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Spread {
    /// The middle value; if there are two, their mean.
    pub median: f64,
    /// The smallest value.
    pub least: f64,
    /// The largest value.
    pub greatest: f64,
}

impl Spread {
    /// The spread of these values; `None` if there are none.
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

    /// The median of a counter; 0 if it was not counted.
    #[must_use]
    pub fn counter(&self, name: &str) -> f64 {
        let values = self.samples.iter().map(|sample| {
            let found = sample.counters.iter().find(|(known, _)| *known == name);
            found.map_or(0.0, |(_, value)| *value)
        });
        Spread::of(values).map_or(0.0, |spread| spread.median)
    }
}

/// What a column measures: a file system, or a form of a mechanism.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its name.
    pub label: String,
    /// The way of a call, or the source of the figures.
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
    /// No chart, because the rows have nothing in common.
    Figures,
}

/// A table.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// A short name for files: letters, digits, `-`.
    pub key: String,
    /// Its title.
    pub title: String,
    /// A description of the measurement in a sentence or two.
    pub about: String,
    /// The unit of the values: `operations/s`, `s`.
    pub unit: &'static str,
    /// Whether less is better.
    pub less_is_better: bool,
    /// The kind of the rows: `workers`.
    pub rows_are: &'static str,
    /// The names of the rows.
    pub rows: Vec<String>,
    /// The columns.
    pub columns: Vec<Column>,
    /// The cells by row, then by column.
    pub cells: Vec<Vec<Cell>>,
    /// What a reader should know, and the conclusions from the figures.
    pub notes: Vec<String>,
    /// How it is drawn.
    pub shape: TableShape,
}

impl Table {
    /// A table with empty cells.
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

    /// The same table with values in seconds, drawn as bars, by kind of work.
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

    /// The names of all details, in the order in which they first occur.
    #[must_use]
    pub fn detail_names(&self) -> Vec<&'static str> {
        self.names(|sample| &sample.details)
    }

    /// The names of all counters that are not 0, in the order in which they first occur.
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
