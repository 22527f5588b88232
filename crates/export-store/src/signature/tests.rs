#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
use super::*;

const RECORD: &[u8] = br#"{"version":1,"volume":"pvc-1","state":{"name":"Live"}}
"#;

fn key() -> RecordsKey {
    RecordsKey::new(&[7; KEY_LENGTH])
}

fn signer(key: &RecordsKey) -> Signer<'_> {
    key.signer("cluster", "export")
}

#[test]
fn a_signed_record_is_still_json_that_an_earlier_release_reads() {
    let sealed = signer(&key()).seal("pvc-1", RECORD);
    assert_eq!(sealed.len(), RECORD.len() + SIGNATURE_LENGTH);
    let value: serde_json::Value = serde_json::from_slice(&sealed).unwrap();
    assert_eq!((&value["version"], &value["volume"]), (&1.into(), &"pvc-1".into()));
    assert_eq!(value["signature"].as_str().unwrap().len(), 64);
}

/// Created with an independent implementation: the signed bytes must be the same in every release.
#[test]
fn the_signature_stays_what_it_was() {
    let sealed = signer(&key()).seal("pvc-1", RECORD);
    let value: serde_json::Value = serde_json::from_slice(&sealed).unwrap();
    assert_eq!(
        value["signature"],
        "70ab81d01ed4ff0d007f2a2d6a618d6535096fd142e6d29382b1f735be7fcc87"
    );
}

#[test]
fn a_record_is_believed_only_where_it_was_written_and_as_it_was_written() {
    let key = key();
    let sealed = signer(&key).seal("pvc-1", RECORD);
    let judged = |signer: Signer<'_>, volume: &str| signer.verify(volume, &sealed);
    assert_eq!(judged(signer(&key), "pvc-1"), SignatureStatus::Signed);
    assert_eq!(judged(signer(&key), "pvc-2"), SignatureStatus::Forged);
    let elsewhere = |cluster_id, export_id| key.signer(cluster_id, export_id);
    assert_eq!(judged(elsewhere("another", "export"), "pvc-1"), SignatureStatus::Forged);
    assert_eq!(
        judged(elsewhere("cluster", "another"), "pvc-1"),
        SignatureStatus::Forged
    );
    // Bytes cannot move from one part to the next.
    assert_eq!(judged(elsewhere("clustere", "xport"), "pvc-1"), SignatureStatus::Forged);
    assert_eq!(judged(signer(&RecordsKey::random()), "pvc-1"), SignatureStatus::Forged);
}

#[test]
fn a_record_with_any_byte_changed_removed_or_added_is_not_believed() {
    let key = key();
    let sealed = signer(&key).seal("pvc-1", RECORD);
    for place in 0..sealed.len() {
        let mut changed = sealed.clone();
        *changed.get_mut(place).unwrap() ^= 1;
        assert_ne!(
            signer(&key).verify("pvc-1", &changed),
            SignatureStatus::Signed,
            "byte {place}"
        );
        let mut shorter = sealed.clone();
        shorter.remove(place);
        assert_ne!(
            signer(&key).verify("pvc-1", &shorter),
            SignatureStatus::Signed,
            "without byte {place}"
        );
        let mut longer = sealed.clone();
        longer.insert(place, b' ');
        assert_ne!(
            signer(&key).verify("pvc-1", &longer),
            SignatureStatus::Signed,
            "a space at {place}"
        );
    }
}

#[test]
fn a_record_without_signature_is_unsigned_and_one_with_a_wrong_one_is_forged() {
    let key = key();
    let text = |signature: &str| format!("{{\"volume\":\"pvc-1\"{signature}}}\n");
    let zeros = format!(",\"signature\":\"{}\"", "0".repeat(64));
    for (signature, expected) in [
        ("", SignatureStatus::Unsigned),
        (",\"signature\":null", SignatureStatus::Unsigned),
        (&*zeros, SignatureStatus::Forged),
        (",\"signature\":\"\"", SignatureStatus::Forged),
        (", \"signature\": \"00\"", SignatureStatus::Forged),
        (",\"signature\":7", SignatureStatus::Forged),
    ] {
        let record = text(signature);
        assert_eq!(signer(&key).verify("pvc-1", record.as_bytes()), expected, "{record}");
    }
    // A valid record that an editor reformatted.
    let sealed = signer(&key).seal("pvc-1", RECORD);
    let value: serde_json::Value = serde_json::from_slice(&sealed).unwrap();
    let pretty = serde_json::to_vec_pretty(&value).unwrap();
    assert_eq!(signer(&key).verify("pvc-1", &pretty), SignatureStatus::Forged);
}

#[test]
fn a_key_is_not_shown() {
    assert_eq!(format!("{:?}", key()), "RecordsKey(…)");
}

#[test]
fn after_a_rotation_records_of_the_previous_key_are_valid_and_the_current_key_signs() {
    let (old, new) = ([1; KEY_LENGTH], [2; KEY_LENGTH]);
    let former = signer(&RecordsKey::new(&old)).seal("pvc-1", RECORD);
    let rotated = RecordsKey::new(&new).with_previous(&old);
    assert_eq!(signer(&rotated).verify("pvc-1", &former), SignatureStatus::Signed);
    let sealed = signer(&rotated).seal("pvc-1", RECORD);
    assert_eq!(sealed, signer(&RecordsKey::new(&new)).seal("pvc-1", RECORD));
    let finished = RecordsKey::new(&new);
    assert_eq!(signer(&finished).verify("pvc-1", &sealed), SignatureStatus::Signed);
    assert_eq!(signer(&finished).verify("pvc-1", &former), SignatureStatus::Forged);
}
