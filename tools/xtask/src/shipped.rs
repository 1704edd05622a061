//! What must not be in the program that ships: features that only tests and the simulation turn on.
//!
//! Cargo turns on a feature for all crates of one build if one of them asks for it, so a build of the workspace has the
//! mistakes made on purpose (`canaries`) and the scheduler of threads (`simulate`) in every program. A build of
//! `lanefs-cli` alone, which is what is installed, has what its own dependencies ask for.

#[cfg(test)]
mod tests {

    /// Features that no program that ships may have.
    const FOR_TESTS: [&str; 2] = ["canaries", "simulate"];

    /// The crates of a package's build and the features that each is built with, a line each: `name feature,feature`.
    fn built(package: &str) -> Vec<String> {
        let output = crate::cargo()
            .current_dir(crate::root())
            .args(["tree", "--locked", "--prefix", "none", "--no-dedupe"])
            .args(["--edges", "normal,build", "--format", "{lib} {f}"])
            .args(["--package", package])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines()
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    /// The crates of ours that are built with a feature for tests.
    fn with_features_for_tests(package: &str) -> Vec<String> {
        let mut found = built(package);
        found.retain(|line| {
            let (name, features) = line.split_once(' ').unwrap_or((line, ""));
            name.starts_with("lanefs")
                && FOR_TESTS
                    .iter()
                    .any(|one| features.split(',').any(|of| of == *one))
        });
        found.sort();
        found.dedup();
        found
    }

    #[test]
    fn the_program_that_ships_is_built_without_canaries_and_without_the_scheduler_of_the_simulation()
     {
        let crates = built("lanefs-cli");
        for needed in ["lanefs_journal", "lanefs_engine", "lanefs_sync"] {
            assert!(
                crates
                    .iter()
                    .any(|line| line.split(' ').next() == Some(needed)),
                "{needed} in: {crates:?}"
            );
        }
        assert_eq!(with_features_for_tests("lanefs-cli"), [""; 0]);
        assert_eq!(with_features_for_tests("lanefs"), [""; 0]);
    }

    /// The most crates from outside that the library may pull with its default features. Procedural macros don't count.
    const MOST_OF_OTHERS: usize = 25;

    #[test]
    fn an_embedder_of_the_core_pulls_few_crates_from_outside() {
        let output = crate::cargo()
            .current_dir(crate::root())
            .args(["tree", "--locked", "--prefix", "none", "--format", "{p}"])
            .args(["--edges", "normal,no-proc-macro", "--package", "lanefs"])
            .output()
            .unwrap();
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stdout);
        let mut others: Vec<&str> = (text.lines())
            .map(|line| line.trim_end_matches(" (*)"))
            .filter(|line| !line.is_empty() && !line.starts_with("lanefs"))
            .collect();
        others.sort_unstable();
        others.dedup();
        assert!(others.len() > 10, "it pulls none: {others:?}");
        assert!(
            others.len() <= MOST_OF_OTHERS,
            "{}: {others:?}",
            others.len()
        );
    }

    #[test]
    fn nothing_compiles_c_in_the_default_build_of_the_program() {
        let crates = built("lanefs-cli");
        let compilers = ["cc", "cmake", "bindgen", "libmimalloc_sys"];
        let is_compiler = |line: &&String| {
            let name = line.split(' ').next().unwrap_or_default();
            compilers.contains(&name)
        };
        assert_eq!(crates.iter().find(is_compiler), None);
    }

    /// The short names of the crates that are never published, and the manifests of the others.
    fn unpublished_and_published() -> (Vec<String>, Vec<(String, String)>) {
        let (mut unpublished, mut published) = (Vec::new(), Vec::new());
        for of in ["crates", "tools"] {
            for entry in std::fs::read_dir(crate::root().join(of)).unwrap() {
                let folder = entry.unwrap();
                let name = folder.file_name().into_string().unwrap();
                let manifest = std::fs::read_to_string(folder.path().join("Cargo.toml")).unwrap();
                let is_published = !manifest.contains("\npublish = false\n");
                assert_eq!(is_published, of == "crates", "{name} in {of}");
                if is_published {
                    published.push((name, manifest))
                } else {
                    unpublished.push(name)
                }
            }
        }
        (unpublished, published)
    }

    /// Cargo leaves a dependency of tests out of a published crate only if it is by path, without a version.
    #[test]
    fn published_crates_need_no_crate_that_is_not_published() {
        let (unpublished, published) = unpublished_and_published();
        assert!(unpublished.iter().any(|name| name == "testkit"));
        let workspace = std::fs::read_to_string(crate::root().join("Cargo.toml")).unwrap();
        for name in &unpublished {
            let start = format!("{name} = {{ ");
            let line = workspace.lines().find(|line| line.starts_with(&start));
            assert!(
                line.is_none_or(|line| !line.contains("version")),
                "{line:?}"
            );
        }
        for (name, manifest) in published {
            assert!(manifest.contains("\ndescription = "), "{name}");
            let dependencies = manifest.split("\n[dependencies]\n").nth(1);
            let dependencies = dependencies.and_then(|rest| rest.split("\n[").next());
            for line in dependencies.unwrap_or_default().lines() {
                let of = line.split(['.', ' ']).next().unwrap_or_default();
                assert!(!unpublished.iter().any(|name| name == of), "{name}: {line}");
            }
        }
    }

    #[test]
    fn the_program_that_ships_links_no_crate_of_tools() {
        let (unpublished, _) = unpublished_and_published();
        let crates = built("lanefs-cli");
        for name in unpublished {
            let library = format!("lanefs_{name}");
            let is_it = |line: &&String| line.split(' ').next() == Some(&library);
            assert_eq!(crates.iter().find(is_it), None);
        }
    }

    #[test]
    fn the_simulation_is_found_to_have_both() {
        let found = with_features_for_tests("lanefs-simulate");
        let names: Vec<&str> = found
            .iter()
            .filter_map(|line| line.split(' ').next())
            .collect();
        assert_eq!(
            names,
            [
                "lanefs_engine",
                "lanefs_jbd2",
                "lanefs_journal",
                "lanefs_sync"
            ],
            "{found:?}"
        );
    }
}
