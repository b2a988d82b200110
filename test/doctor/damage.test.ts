// Damage of every kind to a file: it is seen, and what was not on the damaged page survives with its content, in a file that works.
import assert from "node:assert/strict";
import { existsSync, truncateSync } from "node:fs";
import { test, type TestContext } from "node:test";
import { systemClock } from "../../src/platform/clock.ts";
import type { Repair } from "../../src/stores/store-parts.ts";
import { checkFile } from "../../src/stores/sqlite/doctor/check.ts";
import { repairFile } from "../../src/stores/sqlite/doctor/repair.ts";
import {
  after,
  copyOf,
  damageJobs,
  disagree,
  flip,
  freePages,
  furnish,
  PAGE,
  pageOf,
  readFixture,
  rowsOn,
  type Fixture,
  zero,
} from "../support/damaged-file.ts";
import { Place, untilState } from "../support/processes.ts";

interface Case {
  readonly what: string;
  /** Damages the file; returns the numbers of jobs that may be lost, and whether the user's rows may be. */
  readonly damage: (path: string) => { readonly jobs: readonly number[]; readonly ledger?: boolean };
  /** Which steps repair it. Default: salvage. */
  readonly by?: readonly Repair["steps"][number]["step"][];
}

const none = { jobs: [] };
const flipIn =
  (tree: string, type: string, offset: number, bit: number): Case["damage"] =>
  (path) => {
    const page = pageOf(path, tree, type);
    const jobs = tree === "outlive_jobs" && type === "leaf" ? rowsOn(path, page) : [];
    flip(path, page, offset, bit);
    return { jobs, ledger: tree === "ledger" && type === "leaf" };
  };

const CASES: readonly Case[] = [
  { what: "the header's magic", damage: (path) => (flip(path, 1, 3, 2), none) },
  { what: "the header's page size", damage: (path) => (flip(path, 1, 16, 4), none) },
  { what: "the root of the schema", damage: (path) => (flip(path, 1, 100, 3), { jobs: [], ledger: true }) },
  { what: "an inner page of a table: its type", damage: flipIn("outlive_jobs", "internal", 0, 3) },
  { what: "an inner page of a table: its number of cells", damage: flipIn("outlive_jobs", "internal", 4, 1) },
  { what: "an inner page of a table: its last child", damage: flipIn("outlive_jobs", "internal", 11, 0) },
  { what: "an inner page of a table: where its first cell is", damage: flipIn("outlive_jobs", "internal", 12, 2) },
  { what: "a leaf of a table: its type", damage: flipIn("outlive_jobs", "leaf", 0, 3) },
  { what: "a leaf of a table: its number of cells", damage: flipIn("outlive_jobs", "leaf", 4, 2) },
  { what: "a leaf of a table: where its first cell is", damage: flipIn("outlive_jobs", "leaf", 8, 3) },
  { what: "a leaf of a user's table: its type", damage: flipIn("ledger", "leaf", 0, 0) },
  { what: "an inner page of an index", damage: flipIn("outlive_jobs_id", "internal", 0, 3) },
  { what: "a leaf of an index: its type", damage: flipIn("outlive_jobs_id", "leaf", 0, 3) },
  { what: "a leaf of an index: its number of cells", damage: flipIn("outlive_jobs_ready", "leaf", 4, 0) },
  {
    what: "the trunk of the list of free pages",
    damage: (path) => (flip(path, freePages(path).trunk, 7, 0), none),
    by: ["vacuum"],
  },
];

let pristine: Promise<{ place: Place; fixture: Fixture }> | undefined;

/** Made once; every test damages a copy. */
function furnished(t: TestContext): Promise<{ place: Place; fixture: Fixture }> {
  void t;
  return (pristine ??= (async () => {
    const place = new Place({ after: (fn: () => Promise<void>) => void cleanUps.push(fn) } as never);
    return { place, fixture: await furnish(place) };
  })());
}

const cleanUps: (() => Promise<void>)[] = [];
test.after(async () => {
  for (const cleanUp of cleanUps) await cleanUp();
});

for (const { what, damage, by = ["salvage"] } of CASES) {
  test(`FR-056 FR-058 a flipped bit in ${what} is found, and everything that was not on that page survives`, async (t) => {
    const { place: original, fixture } = await furnished(t);
    const place = new Place(t);
    copyOf(original, place);
    const gone = damage(place.path);
    const check = await checkFile(place.path, "full", Number.POSITIVE_INFINITY);
    assert.equal(check.verdict, "FAILED");
    assert.ok(check.findings.length > 0);
    const repair = await repairFile(place.path, { salvage: true }, { clock: systemClock });
    assert.deepEqual(
      repair.steps.map(({ step, ok }) => [step, ok]),
      by.map((step) => [step, true]),
    );
    assert.equal(repair.sound, true, repair.findings.join("\n"));
    survives(fixture, readFixture(place.path), new Set(gone.jobs), gone.ledger === true);
    assert.equal((await checkFile(place.path, "full", Number.POSITIVE_INFINITY)).verdict, "PASSED");
    await works(place);
  });
}

test("FR-068 FR-069 a zeroed leaf of jobs costs its rows only, which are named; the damaged file is kept, and the recovery point is reported", async (t) => {
  const { place: original, fixture } = await furnished(t);
  const place = new Place(t);
  copyOf(original, place);
  const page = pageOf(place.path, "outlive_jobs", "leaf");
  const gone = rowsOn(place.path, page);
  zero(place.path, page);
  const { salvage } = await repairFile(place.path, { salvage: true }, { clock: systemClock });
  assert.ok(salvage);
  assert.deepEqual(salvage.lost.toSorted(), gone.map((seq) => fixture.inputs.get(seq)!.id).toSorted());
  assert.equal(salvage.tables.find(({ table }) => table === "outlive_jobs")!.lost, gone.length);
  assert.equal(salvage.tables.find(({ table }) => table === "ledger")!.lost, 0);
  assert.ok(existsSync(salvage.keptAs));
  assert.ok(salvage.recoveryPointAt! <= Date.now() && salvage.recoveryPointAt! > Date.now() - 3_600_000);
  survives(fixture, readFixture(place.path), new Set(gone), false);
  await works(place);
});

test("FR-069 a job whose input is on a page that is gone is kept, marked partial and quarantined, and does not run", async (t) => {
  const { place: original, fixture } = await furnished(t);
  const place = new Place(t);
  copyOf(original, place);
  zero(place.path, pageOf(place.path, "outlive_jobs", "overflow"));
  const { salvage, sound } = await repairFile(place.path, { salvage: true }, { clock: systemClock });
  assert.ok(salvage && sound);
  assert.equal(salvage.partial.length, 1);
  assert.deepEqual(salvage.lost, []);
  const engine = await place.engine({ jobs: damageJobs });
  const job = (await engine.get(salvage.partial[0]!))!;
  assert.equal(job.state, "quarantined");
  assert.match(job.history.at(-1)!.reason, /^corrupt: its input can't be read/);
  assert.match(job.error!.message, /the store was damaged/);
  const partial = new Set([...fixture.inputs].filter(([, { id }]) => id === job.id).map(([seq]) => seq));
  assert.equal(readFixture(place.path).inputs.size, fixture.inputs.size);
  survives(fixture, readFixture(place.path), partial, false);
});

test("a truncated file keeps what is before its end", async (t) => {
  const { place: original, fixture } = await furnished(t);
  const place = new Place(t);
  copyOf(original, place);
  truncateSync(place.path, pageOf(place.path, "outlive_jobs", "leaf") * PAGE + 100);
  assert.equal((await checkFile(place.path, "quick", Number.POSITIVE_INFINITY)).verdict, "FAILED");
  const { sound, salvage } = await repairFile(place.path, { salvage: true }, { clock: systemClock });
  assert.ok(sound && salvage);
  const left = readFixture(place.path);
  assert.ok(left.inputs.size > 0 && left.inputs.size < fixture.inputs.size);
  const whole = [...left.inputs].filter(([seq]) => !salvage.partial.includes(left.inputs.get(seq)!.id));
  for (const [seq, { id, input }] of whole) assert.deepEqual(fixture.inputs.get(seq), { id, input });
  await works(place);
});

test("FR-060 an index that disagrees with its table is rebuilt in place, and nothing is lost", async (t) => {
  const { place: original, fixture } = await furnished(t);
  const place = new Place(t);
  copyOf(original, place);
  disagree(place.path);
  assert.equal((await checkFile(place.path, "full", Number.POSITIVE_INFINITY)).verdict, "FAILED");
  const { steps, sound, salvage } = await repairFile(place.path, { salvage: true }, { clock: systemClock });
  assert.deepEqual(
    steps.map(({ step, ok }) => [step, ok]),
    [["reindex", true]],
  );
  assert.ok(sound && salvage === null);
  survives(fixture, readFixture(place.path), new Set(), false);
  await works(place);
});

test("without permission to salvage a damaged tree is left as it is, and what is wrong is reported", async (t) => {
  const { place: original } = await furnished(t);
  const place = new Place(t);
  copyOf(original, place);
  zero(place.path, pageOf(place.path, "outlive_jobs", "leaf"));
  const { steps, sound, salvage, findings } = await repairFile(place.path, { salvage: false }, { clock: systemClock });
  assert.deepEqual([steps.length, sound, salvage], [0, false, null]);
  assert.ok(findings.length > 0);
});

test("NFR-002 a check that is not done within its limit is UNFINISHED, never PASSED", async (t) => {
  const { place } = await furnished(t);
  const check = await checkFile(place.path, "full", 1);
  assert.deepEqual([check.verdict, check.findings], ["UNFINISHED", []]);
});

/** A flipped bit in a text is still a text: SQLite keeps no checksums. Row checksums are what finds it. */
test("a flipped bit inside a text is nothing that SQLite's own check can see", async (t) => {
  const { place: original } = await furnished(t);
  const place = new Place(t);
  copyOf(original, place);
  flip(place.path, pageOf(place.path, "outlive_jobs", "overflow"), 100, 0);
  assert.equal((await checkFile(place.path, "full", Number.POSITIVE_INFINITY)).verdict, "PASSED");
});

/** Every job that was not on the damaged page is there, with its input as it was. */
function survives(before: Fixture, now: Fixture, gone: ReadonlySet<number>, ledgerToo: boolean): void {
  const missing = [...before.inputs].filter(([seq]) => !gone.has(seq) && !now.inputs.has(seq));
  assert.deepEqual(missing, [], "nothing else is missing");
  for (const [seq, { id, input }] of now.inputs)
    if (!gone.has(seq)) assert.deepEqual({ id, input }, before.inputs.get(seq));
  if (!ledgerToo) assert.equal(now.ledger, before.ledger, "the user's rows");
}

/** The file takes work and runs it. */
async function works(place: Place): Promise<void> {
  const engine = await place.engine({ jobs: damageJobs });
  const { id } = await engine.enqueue(after, { n: 41 });
  const worker = await engine.start({ only: [after] });
  await untilState(engine, id, "succeeded");
  assert.equal((await engine.get(id))!.result, 42);
  await worker.stop();
  await engine.close();
}
