//! Vectors made by debugfs 1.47.0: `dx_hash -h HASHALG_<version> [-s <seed>] <name>`.

use super::*;

/// 5d8c2e71-90fa-4b36-8e17-c4a9d3b2f605 as the superblock holds it.
const SEED: [u32; 4] = [0x712E_8C5D, 0x364B_FA90, 0xA9C4_178E, 0x05F6_B2D3];

fn names() -> Vec<Vec<u8>> {
    vec![
        "a".into(),
        "hello".into(),
        "größe".into(),
        "exactly sixteen!".into(),
        "seventeen letters".into(),
        "a name of thirty-two bytes, full".into(),
        "a name of thirty-three bytes, fu!".into(),
        vec![b'x'; 255],
        "é".repeat(127).into_bytes(),
        "日本語のファイル名.txt".into(),
    ]
}

/// Major and minor words: for no seed and then for SEED, for each version, for each name.
const VECTORS: [[[(u32, u32); 10]; 6]; 2] = [
    [
        [
            (0xE74B_53E2, 0x0000_0000),
            (0x3225_2546, 0x0000_0000),
            (0x9D04_0690, 0x0000_0000),
            (0x38A8_8F62, 0x0000_0000),
            (0xE594_57FA, 0x0000_0000),
            (0xFF93_144E, 0x0000_0000),
            (0x92C8_2614, 0x0000_0000),
            (0x3055_7DA6, 0x0000_0000),
            (0x4BCE_C5B2, 0x0000_0000),
            (0xAC85_D92E, 0x0000_0000),
        ],
        [
            (0xD5FA_7D7A, 0xACB4_8187),
            (0x1746_DA32, 0x4200_13B5),
            (0xA759_A98E, 0x352B_69B2),
            (0xED6B_609A, 0x56C4_9B1C),
            (0x1A39_8166, 0x91D0_42BE),
            (0x8019_85E4, 0x5A9F_D2EE),
            (0x3802_954C, 0xD50E_063D),
            (0x2AA7_169E, 0x655F_9D9C),
            (0x1BB9_D844, 0x3842_168E),
            (0x498C_D79E, 0x5602_89F3),
        ],
        [
            (0x6D0E_A4C0, 0xC189_22DF),
            (0x6F5B_B1A8, 0x2319_17C2),
            (0xCC8F_D112, 0x6625_F082),
            (0xCE29_3266, 0x54D7_3D8B),
            (0xD238_D024, 0xCBA9_9F89),
            (0xDD71_DA98, 0xBD0E_062C),
            (0x01C4_0370, 0xE1BC_BF10),
            (0x6C4C_00EE, 0x0EAF_DB6B),
            (0x08D7_62A4, 0xA1BB_3108),
            (0x902B_0C26, 0xE6FA_38BF),
        ],
        [
            (0xE74B_53E2, 0x0000_0000),
            (0x3225_2546, 0x0000_0000),
            (0x098D_2490, 0x0000_0000),
            (0x38A8_8F62, 0x0000_0000),
            (0xE594_57FA, 0x0000_0000),
            (0xFF93_144E, 0x0000_0000),
            (0x92C8_2614, 0x0000_0000),
            (0x3055_7DA6, 0x0000_0000),
            (0x3A1C_EE20, 0x0000_0000),
            (0xE405_3258, 0x0000_0000),
        ],
        [
            (0xD5FA_7D7A, 0xACB4_8187),
            (0x1746_DA32, 0x4200_13B5),
            (0x10EA_F0CC, 0x72C4_E7B6),
            (0xED6B_609A, 0x56C4_9B1C),
            (0x1A39_8166, 0x91D0_42BE),
            (0x8019_85E4, 0x5A9F_D2EE),
            (0x3802_954C, 0xD50E_063D),
            (0x2AA7_169E, 0x655F_9D9C),
            (0x0935_8F06, 0x87F9_F7D3),
            (0x1B34_948A, 0xD427_3000),
        ],
        [
            (0x6D0E_A4C0, 0xC189_22DF),
            (0x6F5B_B1A8, 0x2319_17C2),
            (0x2E17_7714, 0x078D_746A),
            (0xCE29_3266, 0x54D7_3D8B),
            (0xD238_D024, 0xCBA9_9F89),
            (0xDD71_DA98, 0xBD0E_062C),
            (0x01C4_0370, 0xE1BC_BF10),
            (0x6C4C_00EE, 0x0EAF_DB6B),
            (0x2C95_F6FE, 0xB2C4_A8B5),
            (0x5FA5_F4F4, 0xC600_0116),
        ],
    ],
    [
        [
            (0xE74B_53E2, 0x0000_0000),
            (0x3225_2546, 0x0000_0000),
            (0x9D04_0690, 0x0000_0000),
            (0x38A8_8F62, 0x0000_0000),
            (0xE594_57FA, 0x0000_0000),
            (0xFF93_144E, 0x0000_0000),
            (0x92C8_2614, 0x0000_0000),
            (0x3055_7DA6, 0x0000_0000),
            (0x4BCE_C5B2, 0x0000_0000),
            (0xAC85_D92E, 0x0000_0000),
        ],
        [
            (0x864E_6CB2, 0x818B_FE23),
            (0xD678_3F86, 0x09CA_285A),
            (0xEA95_F9DE, 0x18A5_BA9C),
            (0x10FE_A034, 0xE269_B90D),
            (0x7F92_669C, 0xB8CE_D626),
            (0x9BCB_EC44, 0xFE45_9022),
            (0x5A2B_9D60, 0x1048_4D90),
            (0xD5A5_0E2C, 0x49B2_3AE2),
            (0x141F_D238, 0xB4F2_0A61),
            (0x6D76_C280, 0x84DD_8612),
        ],
        [
            (0x2F72_46CC, 0x72E6_6A42),
            (0x8241_691C, 0x158B_2B57),
            (0x692C_2430, 0xC37C_E8B2),
            (0x2051_AB68, 0xAE89_C33A),
            (0x89BD_E084, 0x4A9F_86DE),
            (0x6A7F_9DD4, 0x2686_4512),
            (0x84DC_E4FE, 0x50A0_7F2F),
            (0x594E_E9FE, 0xF390_574C),
            (0x777B_9B94, 0xF0A3_04F4),
            (0x37CD_9D40, 0xF14E_113D),
        ],
        [
            (0xE74B_53E2, 0x0000_0000),
            (0x3225_2546, 0x0000_0000),
            (0x098D_2490, 0x0000_0000),
            (0x38A8_8F62, 0x0000_0000),
            (0xE594_57FA, 0x0000_0000),
            (0xFF93_144E, 0x0000_0000),
            (0x92C8_2614, 0x0000_0000),
            (0x3055_7DA6, 0x0000_0000),
            (0x3A1C_EE20, 0x0000_0000),
            (0xE405_3258, 0x0000_0000),
        ],
        [
            (0x864E_6CB2, 0x818B_FE23),
            (0xD678_3F86, 0x09CA_285A),
            (0x6DAE_0FAA, 0x9473_BF7B),
            (0x10FE_A034, 0xE269_B90D),
            (0x7F92_669C, 0xB8CE_D626),
            (0x9BCB_EC44, 0xFE45_9022),
            (0x5A2B_9D60, 0x1048_4D90),
            (0xD5A5_0E2C, 0x49B2_3AE2),
            (0xB0EE_4A3E, 0x074F_419F),
            (0x87D7_3386, 0x4DBC_E515),
        ],
        [
            (0x2F72_46CC, 0x72E6_6A42),
            (0x8241_691C, 0x158B_2B57),
            (0xAD28_0FA6, 0x0212_41C6),
            (0x2051_AB68, 0xAE89_C33A),
            (0x89BD_E084, 0x4A9F_86DE),
            (0x6A7F_9DD4, 0x2686_4512),
            (0x84DC_E4FE, 0x50A0_7F2F),
            (0x594E_E9FE, 0xF390_574C),
            (0x710E_F8DA, 0xFBE0_BC17),
            (0x9731_109C, 0xC36D_0A83),
        ],
    ],
];

#[test]
fn hashes_are_those_of_debugfs() {
    for (seed, versions) in [[0; 4], SEED].iter().zip(VECTORS) {
        for (code, expected) in (0..).zip(versions) {
            let version = HashVersion::from_code(code).expect("six versions");
            for (name, (major, minor)) in names().iter().zip(expected) {
                let found = hash(version, seed, name);
                assert_eq!(
                    found,
                    Some(NameHash { major, minor }),
                    "{version:?} {:?}",
                    String::from_utf8_lossy(name)
                );
            }
        }
    }
}

#[test]
fn the_word_past_the_end_is_never_a_hash() {
    assert_eq!(NameHash::new(0xFFFF_FFFF, 1).major, 0xFFFF_FFFC);
    assert_eq!(NameHash::new(0xFFFF_FFFD, 1).major, 0xFFFF_FFFC);
}

#[test]
fn siphash_agrees_with_its_authors_vectors() {
    // From the paper's appendix: key 00 01 .. 0f, messages of no byte and of 00 01 .. 0e.
    let key = [0x0706_0504_0302_0100, 0x0F0E_0D0C_0B0A_0908];
    let message: Vec<u8> = (0..15).collect();
    assert_eq!(siphash_2_4(key, &[]), 0x726F_DB47_DD0E_0E31);
    assert_eq!(siphash_2_4(key, &message), 0xA129_CA61_49BE_45E5);
    assert_eq!(
        siphash(key, &message),
        NameHash {
            major: 0xA129_CA60,
            minor: 0x49BE_45E5
        }
    );
}

#[test]
fn only_siphash_needs_a_key() {
    assert_eq!(hash(HashVersion::SipHash, &SEED, b"name"), None);
}
