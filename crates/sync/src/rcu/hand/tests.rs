//! Hands that pass over a table while it grows, step by step.

use std::sync::mpsc::channel;

use super::*;
use crate::{Arc, Rank};

struct Entry {
    key: u64,
    copy: u32,
}

impl Keyed for Entry {
    fn key(&self) -> u64 {
        self.key
    }
}

/// A table of 64 buckets that grows, with bucket 3 moved already; and a key whose insertion moves the other buckets.
fn growing() -> (CountedTable<Entry>, u64) {
    let table = CountedTable::new(Rank::IcacheBucket, 64);
    let mut key = 0;
    while table.statistics().grown == 0 {
        add(&table, key);
        key += 1;
    }
    add(&table, key);
    assert_eq!(table.statistics().buckets, 64);
    (table, key + 1)
}

fn add(table: &CountedTable<Entry>, key: u64) {
    let copy = 1;
    table.locked(key, |bucket| {
        drop(bucket.insert(Arc::new(Entry { key, copy })))
    });
}

#[test]
fn a_hand_that_comes_late_from_the_smaller_table_marks_nothing() {
    let (table, next_key) = growing();
    let table = &table;
    let (late_is_there, late_there) = channel();
    let (let_late_go, late_goes) = channel::<()>();
    let (late_is_done, late_done) = channel();
    let (reader_is_there, reader_there) = channel();
    let (let_reader_go, reader_goes) = channel::<()>();
    std::thread::scope(|scope| {
        // A hand of the smaller table, before it takes the lock of a bucket that it is about to mark.
        scope.spawn(move || {
            let guard = table.domain().enter();
            let array = table.array(guard.kept());
            let mut is_first = true;
            CountedTable::at(array, 3, guard.kept(), &mut |bucket| {
                // Bucket 3 of 64 became two buckets, and the one that key 67 belongs to is visited first.
                if std::mem::take(&mut is_first) {
                    late_is_there.send(()).unwrap();
                    late_goes.recv().unwrap();
                }
                table.visit_bucket(64, bucket, guard.kept(), &mut |bucket, _| mark(bucket));
            });
            drop(guard);
            late_is_done.send(()).unwrap();
        });
        late_there.recv().unwrap();
        add(table, next_key);
        assert_eq!(table.statistics().buckets, 128);
        // A hand of the larger table marks buckets 64 to 95, key 67 among them, and is not allowed to pass again yet.
        let mut hand = Hand::new(2, 4);
        assert_eq!(table.sweep(&mut hand, 1000, &mut |_| true).gone, 0);
        // A thread uses the entry, which removes the mark.
        drop(table.find(67).unwrap());
        // A reader finds the entry without a mark, and has not counted it yet.
        let reader = scope.spawn(move || {
            table.find_by(67, |_| {
                reader_is_there.send(()).unwrap();
                reader_goes.recv().unwrap();
                true
            })
        });
        reader_there.recv().unwrap();
        let_late_go.send(()).unwrap();
        late_done.recv().unwrap();
        table.sweep(&mut hand, 1000, &mut |_| true);
        let_reader_go.send(()).unwrap();
        let found = reader.join().unwrap().unwrap();
        // If this thread does not find the entry, it inserts a second instance.
        table.locked(67, |bucket| {
            if bucket.get().is_none() {
                bucket.insert(Arc::new(Entry { key: 67, copy: 2 }));
            }
        });
        assert_eq!(table.find(67).unwrap().copy, 1);
        assert!(Arc::ptr_eq(&found, &table.find(67).unwrap()), "twice there");
    });
}
