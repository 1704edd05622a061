//! The steps of a repair, by what problems they mend.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::{Feature, Ino};

use crate::problem::{Class, Code};
use crate::repair::directory::{DirectoryChange, Parents};
use crate::repair::edit::Edit;
use crate::repair::{Step, connect, directory, inodes, layout, quota, shared, special, tally};
use crate::report::Problem;
use crate::run::{Examined, Facts};

/// Does one step for its problems.
pub fn mend_step(edit: &mut Edit<'_, '_>, step: Step, examined: &Examined, problems: &[Problem]) {
    if step == Step::Layout {
        layout::run(edit, examined.facts.as_ref(), problems);
    }
    let Some(facts) = &examined.facts else {
        return;
    };
    match step {
        Step::Layout | Step::System => mend_system(edit, facts, examined, problems),
        Step::Inodes => mend_inodes(edit, facts, examined, problems),
        Step::Contents => mend_contents(edit, facts, problems),
        Step::Names => {
            if edit.has(Feature::QUOTA) {
                quota::leave_unnamed(edit, problems);
            }
            // What is in its way stays, and is found by the next check.
            let _ = connect::run(edit, facts, problems);
        }
        Step::Counts => mend_counts(edit, facts, examined, problems),
    }
}

fn mend_system(edit: &mut Edit<'_, '_>, facts: &Facts, examined: &Examined, problems: &[Problem]) {
    let codes: BTreeSet<Code> = problems.iter().map(|it| it.code).collect();
    special::run(
        edit,
        facts,
        &codes,
        &shared::runs(&examined.report.problems),
    );
    let unread = problems.iter().filter(|it| it.code == Code::EntryUninit);
    let unread: BTreeSet<u32> = unread
        .filter_map(|it| {
            edit.geometry
                .group_of_ino(Ino(u32::try_from(it.found?).ok()?))
        })
        .map(|(group, _)| group.0)
        .collect();
    for group in unread {
        layout::initialize(edit, ondisk::Group(group));
    }
}

fn mend_inodes(edit: &mut Edit<'_, '_>, facts: &Facts, examined: &Examined, problems: &[Problem]) {
    let shared = shared::runs(&examined.report.problems);
    let mut of_inode: BTreeMap<u32, BTreeSet<Code>> = BTreeMap::new();
    for problem in problems {
        match (problem.code, problem.ino) {
            (Code::NoRoot, _) => {
                of_inode
                    .entry(Ino::ROOT.0)
                    .or_default()
                    .insert(problem.code);
            }
            (Code::LargeFile, _) => {
                let features = edit.sb.features().with(Feature::LARGE_FILE);
                edit.sb.set_features(features);
                edit.set_superblock();
            }
            (Code::QuotaNamed, _) => {
                edit.sb.set_user_quota_ino(None);
                edit.sb.set_group_quota_ino(None);
                edit.sb.set_project_quota_ino(None);
                edit.set_superblock();
            }
            (Code::QuotaInode, Some(ino)) => {
                quota::mend_file(edit, facts, &shared, Ino(ino));
            }
            (Code::ResizeInode | Code::ResizeLeft, _) | (_, Some(7)) => {
                of_inode
                    .entry(Ino::RESIZE.0)
                    .or_default()
                    .insert(problem.code);
            }
            (_, Some(ino)) => {
                of_inode.entry(ino).or_default().insert(problem.code);
            }
            _ => {}
        }
    }
    for (ino, codes) in of_inode {
        if Ino(ino) == Ino::RESIZE {
            special::resize_inode(edit);
        } else {
            inodes::mend(edit, facts, &shared, Ino(ino), &codes);
        }
    }
}

fn mend_contents(edit: &mut Edit<'_, '_>, facts: &Facts, problems: &[Problem]) {
    let shared = shared::claimants(problems);
    if problems
        .iter()
        .any(|it| it.code == Code::BlockSharedRun || shared::needs_copies(it.code))
    {
        shared::run(edit, facts, problems);
        if shared.contains(&Ino::RESIZE.0) {
            special::resize_inode(edit);
        }
    }
    let mut parents: Parents = connect::choose_parents(facts, problems);
    for problem in problems {
        let is_of_entry = matches!(
            problem.code,
            Code::EntryUnencrypted
                | Code::EntryOtherPolicy
                | Code::EntryValueInode
                | Code::EntryInode
                | Code::EntryItself
        );
        if let (true, Some(ino), Some(Ok(child))) =
            (is_of_entry, problem.ino, problem.found.map(u32::try_from))
        {
            parents.refused.insert((ino, child));
        }
    }
    let mut directories: BTreeMap<u32, bool> = BTreeMap::new();
    for problem in problems {
        let is_directory = matches!(problem.code.kind().class, Class::Directory | Class::Htree);
        if let Some(ino) = problem.ino.filter(|_| is_directory) {
            *directories.entry(ino).or_default() |= problem.code.kind().class == Class::Htree;
        }
    }
    // The name that the check met first may be the one that goes.
    for child in parents.chosen.keys() {
        if let Some(node) = facts.tree.find(Ino(*child)) {
            let parent = node.parent.get();
            directories.entry(parent).or_default();
        }
    }
    for (ino, rebuilds) in directories
        .into_iter()
        .filter(|(ino, _)| !shared.contains(ino))
    {
        let change = DirectoryChange {
            rebuilds,
            ..DirectoryChange::default()
        };
        directory::mend(edit, facts, &parents, Ino(ino), &change);
    }
}

fn mend_counts(edit: &mut Edit<'_, '_>, facts: &Facts, examined: &Examined, problems: &[Problem]) {
    tally::links(edit, problems);
    let groups = problems.iter().filter_map(|it| it.group).collect();
    tally::groups(edit, facts, &groups);
    if problems.iter().any(|it| it.code == Code::QuotaUsage) {
        quota::run(edit, facts, &shared::runs(&examined.report.problems));
    }
    if let Some(totals) = &examined.report.totals
        && !facts.has_unread
    {
        tally::superblock(edit, totals);
    }
}
