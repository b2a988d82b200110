// What a salvaged file owes collections: sums are those of the parts that survive, and a part whose row is lost is accepted when it comes again.
import assert from "node:assert/strict";
import { DatabaseSync } from "node:sqlite";
import { test, type TestContext } from "node:test";
import { jobKind, jobOf, type Part, rangesText } from "../../src/job/collections.ts";
import { systemClock } from "../../src/platform/clock.ts";
import { repairFile } from "../../src/stores/sqlite/doctor/repair.ts";
import type { Store } from "../../src/stores/port.ts";
import { kind } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/sqlite-stores.ts";
import { pageOf, zero } from "../support/damaged-file.ts";
import { Place } from "../support/processes.ts";

const PARTS = 400;
const part = (ordinal: number): Part => ({
  collection: "c",
  series: "files",
  ordinal,
  blob: `collections/mail/c/files/${ordinal}-0123456789abcdef`,
  bytes: 10,
  sha256: "0".repeat(64),
});
const ALL = Array.from({ length: PARTS }, (_, at) => part(at + 1));

/** Loses one leaf of the table of a collection that has all parts but the last, salvages, and opens again. */
async function salvaged(t: TestContext, table: string): Promise<Store> {
  const place = new Place(t);
  const store = await openStore(systemClock, place.path);
  await store.declare([kind("mail"), kind(jobKind("mail", "request"))]);
  await store.collections!.open({
    id: "c",
    kind: "mail",
    input: "{}",
    series: [{ name: "files", expected: PARTS }],
    idleMs: 3_600_000,
    totalMs: 3_600_000,
    keepMs: 1,
    follow: [jobOf({ id: "c", kind: "mail" }, "request")],
  });
  await store.collections!.put(ALL.slice(0, -1));
  await store.close();
  zero(place.path, pageOf(place.path, table, "leaf"));
  const { sound } = await repairFile(place.path, { salvage: true }, { clock: systemClock });
  assert.ok(sound);
  const again = await openStore(systemClock, place.path);
  t.after(() => again.close());
  return again;
}

test("parts whose rows are lost are missing in the sums, too, and are accepted again until the set is whole", async (t) => {
  const { collections } = await salvaged(t, "outlive_parts");
  const [row] = await collections!.get(["c"]);
  const { have, bytes } = row!.series[0]!;
  assert.ok(have > 0 && have < PARTS - 1, `${have} parts survive`);
  assert.equal(bytes, have * 10);
  assert.notEqual(rangesText(await collections!.missing("c", "files", 10)), "");
  const answers = await collections!.put(ALL);
  assert.deepEqual(
    [answers.filter((one) => one === "accepted").length, answers.filter((one) => one === "duplicate").length],
    [PARTS - have, have],
  );
  assert.deepEqual((await collections!.due(10)).ids, ["c"], "it can end");
});

test("a collection whose texts are lost is seen as damaged, and its parts stay", async (t) => {
  const { collections } = await salvaged(t, "outlive_collection_texts");
  const [row] = await collections!.get(["c"]);
  assert.deepEqual([row?.corrupt, row?.series[0]?.have, row?.state], [true, PARTS - 1, "collecting"]);
});

test("a full check finds sums that are not those of the parts, and parts of a collection that does not exist", async (t) => {
  const place = new Place(t);
  const store = await openStore(systemClock, place.path);
  t.after(() => store.close());
  await store.declare([kind("mail")]);
  const times = { idleMs: 3_600_000, totalMs: 3_600_000, keepMs: 1 };
  const series = [{ name: "files", expected: 3 }];
  await store.collections!.open({ id: "c", kind: "mail", input: "{}", series, ...times, follow: [] });
  await store.collections!.put(ALL.slice(0, 2));
  const found = async (): Promise<unknown> =>
    (await store.upkeep.inconsistencies!()).map(({ what, names }) => [what, names]);
  assert.deepEqual(await found(), []);
  const file = new DatabaseSync(place.path);
  t.after(() => file.close());
  file.exec("UPDATE outlive_series SET have = 3");
  assert.deepEqual(await found(), [["collection-disagrees", ["c"]]]);
  file.exec("UPDATE outlive_series SET have = 2; UPDATE outlive_parts SET collection = 9 WHERE ordinal = 2");
  assert.deepEqual(await found(), [["collection-disagrees", ["c", "9"]]]);
});
