// Damage by chance, from one seed: bits and stretches of bytes on any page. Whatever it hits, salvage makes a sound file, invents
// nothing, and loses nothing that was not on that page.
import assert from "node:assert/strict";
import { closeSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { readFindings } from "../../src/stores/sqlite/doctor/check.ts";
import { Pages } from "../../src/stores/sqlite/doctor/salvage/pages.ts";
import { readPlan } from "../../src/stores/sqlite/doctor/salvage/plan.ts";
import { writeNew } from "../../src/stores/sqlite/doctor/salvage/write.ts";
import { furnish, PAGE, readFixture, rowsOn } from "../support/damaged-file.ts";
import { Place } from "../support/processes.ts";

const SEED = Number(process.env["OUTLIVE_SEED"] ?? 4);
const CASES = Number(process.env["OUTLIVE_CASES"] ?? 60);

test(`FR-069 of ${CASES} files damaged by chance each is salvaged, and only rows of the damaged page are missing`, async (t) => {
  t.diagnostic(`OUTLIVE_SEED=${SEED} OUTLIVE_CASES=${CASES}`);
  const place = new Place(t);
  const fixture = await furnish(place);
  const sound = readFileSync(place.path);
  const uses = pageUses(place.path);
  const random = chance(SEED);
  const damaged = join(place.folder, "damaged.db");
  const salvaged = join(place.folder, "salvaged.db");
  for (let n = 0; n < CASES; n++) {
    const bytes = Buffer.from(sound);
    const page = 1 + random(bytes.length / PAGE);
    // Heads of pages are hit more often: that is where the structure is.
    const at = (page - 1) * PAGE + random([12, 100, 100, PAGE][n % 4]!);
    if (n % 4 === 1) bytes.fill(random(256), at, Math.min(at + 1 + random(200), page * PAGE));
    else bytes[at]! ^= 1 << random(8);
    writeFileSync(damaged, bytes);
    rmSync(salvaged, { force: true });
    const file = openSync(damaged, "r");
    writeNew(salvaged, readPlan(new Pages(file, null)), Date.now(), () => {});
    closeSync(file);

    const use = uses.get(page) ?? "free";
    const what = `case ${n}: byte ${at} on page ${page} (${use})`;
    assert.deepEqual(readFindings(salvaged, "full"), [], what);
    const now = readFixture(salvaged);
    const onPage = new Set(use === "outlive_jobs leaf" ? rowsOn(place.path, page) : []);
    for (const [seq, { id, input }] of fixture.inputs)
      if (!onPage.has(seq) && use !== "outlive_jobs overflow")
        assert.deepEqual(now.inputs.get(seq), { id, input }, `${what}, job ${seq}`);
    assert.deepEqual(
      [...now.inputs.keys()].filter((seq) => !fixture.inputs.has(seq)),
      [],
      `${what}: nothing is invented`,
    );
    if (!use.startsWith("ledger") && page !== 1) assert.equal(now.ledger, fixture.ledger, what);
  }
});

function pageUses(path: string): Map<number, string> {
  const db = new DatabaseSync(path, { readOnly: true });
  const rows = db.prepare("SELECT pageno, name || ' ' || pagetype AS use FROM dbstat").all() as {
    pageno: number;
    use: string;
  }[];
  db.close();
  return new Map(rows.map(({ pageno, use }) => [pageno, use]));
}

function chance(seed: number): (below: number) => number {
  let state = seed >>> 0;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}
