// Repairs that are killed: at every change that a salvage makes to the file system, while it copies, and during REINDEX and VACUUM.
// The file is then the old one, untouched, or the new one, complete; the next repair finishes, and nothing readable is lost.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import {
  copyFileSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statfsSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { type TestContext, test } from "node:test";
import { fileURLToPath } from "node:url";
import { ErrorCode } from "../../src/index.ts";
import { systemClock } from "../../src/platform/clock.ts";
import { readFindings } from "../../src/stores/sqlite/doctor/check.ts";
import { repairFile } from "../../src/stores/sqlite/doctor/repair.ts";
import { finishSwap } from "../../src/stores/sqlite/doctor/swap.ts";
import { says } from "../engine/engines.ts";
import {
  disagree,
  flip,
  freePages,
  furnish,
  pageOf,
  readFixture,
  rowsOn,
  type Fixture,
} from "../support/damaged-file.ts";
import { Place } from "../support/processes.ts";

const SCRIPT = fileURLToPath(new URL("../support/salvage-process.ts", import.meta.url));

/** Of each repair in place. */
const KILLS = 5;

interface Damaged {
  readonly folder: string;
  readonly fixture: Fixture;
  readonly gone: ReadonlySet<number>;
}

/** A damaged leaf of jobs, and a log with rows of the user's that are nowhere else. */
async function damagedWithLog(t: TestContext): Promise<Damaged> {
  const place = new Place(t);
  await furnish(place);
  const db = new DatabaseSync(place.path);
  db.exec("PRAGMA wal_autocheckpoint = 0");
  db.exec("INSERT INTO ledger (n, what) SELECT n + 1000, what FROM ledger LIMIT 50");
  const folder = temporary(t);
  for (const suffix of ["", "-wal"]) copyFileSync(place.path + suffix, join(folder, `jobs.db${suffix}`));
  const fixture = readFixture(place.path);
  const page = pageOf(place.path, "outlive_jobs", "leaf");
  db.close();
  const gone = new Set(rowsOn(join(folder, "jobs.db"), page));
  flip(join(folder, "jobs.db"), page, 0, 3);
  return { folder, fixture, gone };
}

function temporary(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), "outlive-salvage-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

function copied(t: TestContext, from: string): string {
  const folder = temporary(t);
  for (const name of readdirSync(from).filter((one) => /^jobs\.db(-wal)?$/.test(one)))
    copyFileSync(join(from, name), join(folder, name));
  return join(folder, "jobs.db");
}

/** Runs it until it is done or dead; `watch` hears what it says and may kill it. */
function run(
  t: TestContext,
  task: string,
  path: string,
  killAt = 0,
  watch: (said: string, kill: () => void) => void = () => {},
): Promise<string> {
  const child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", SCRIPT, task, path, String(killAt)], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  t.after(() => void child.kill("SIGKILL"));
  let said = "";
  child.stdout.on("data", (data: Buffer) => watch((said += data.toString()), () => void child.kill("SIGKILL")));
  return new Promise((resolve) => void child.on("close", () => resolve(said)));
}

/** Old and untouched, or new and complete: never neither, never the new one with the old one's log. */
function oldOrNew(path: string, { folder, fixture, gone }: Damaged): "old" | "new" {
  assert.ok(existsSync(path), "there is a file of that name");
  if (!readFileSync(path).equals(readFileSync(join(folder, "jobs.db"))))
    // It may have a log of its own, made by a process that read it.
    assert.ok(
      !existsSync(`${path}-wal`) || !readFileSync(`${path}-wal`).equals(readFileSync(join(folder, "jobs.db-wal"))),
      "the old log is gone before the new file comes",
    );
  finishSwap(path);
  assert.ok(!existsSync(`${path}.swap`) && !existsSync(`${path}.salvage`), readdirSync(join(path, "..")).join(" "));
  if (readFileSync(path).equals(readFileSync(join(folder, "jobs.db")))) {
    assert.ok(readFileSync(`${path}-wal`).equals(readFileSync(join(folder, "jobs.db-wal"))), "with its log");
    return "old";
  }
  assert.deepEqual(readFindings(path, "full"), []);
  const now = readFixture(path);
  assert.equal(now.ledger, fixture.ledger, "what was in the log only is there");
  const missing = [...fixture.inputs].filter(([seq]) => !gone.has(seq) && !now.inputs.has(seq));
  assert.deepEqual(missing, []);
  return "new";
}

test("FR-058 a salvage killed at any of its changes to the file system leaves the old file or the new one, and the next finishes", async (t) => {
  const damaged = await damagedWithLog(t);
  const whole = await run(t, "salvage", copied(t, damaged.folder));
  const points = Number(/done (\d+)/.exec(whole)![1]);
  assert.ok(points >= 20, `${points} points`);
  const seen = { old: 0, new: 0 };
  for (let point = 1; point <= points; point++) {
    const path = copied(t, damaged.folder);
    assert.doesNotMatch(await run(t, "salvage", path, point), /done/, `it was killed at ${point}`);
    const which = oldOrNew(path, damaged);
    seen[which]++;
    if (which === "old") assert.match(await run(t, "salvage", path), /done/, `the next one after ${point}`);
    assert.equal(oldOrNew(path, damaged), "new", `after ${point}`);
  }
  t.diagnostic(`${points} kills: ${seen.old} left the old file, ${seen.new} the new one`);
  assert.ok(seen.old > 0 && seen.new > 0);
});

test("FR-058 a salvage killed while it copies has not touched the damaged file, and repair then finishes", async (t) => {
  const damaged = await damagedWithLog(t);
  for (const table of ["outlive_meta", "outlive_jobs", "outlive_history", "ledger"]) {
    const path = copied(t, damaged.folder);
    await run(t, "salvage", path, 0, (said, kill) => said.includes(table) && kill());
    oldOrNew(path, damaged);
    const { sound } = await repairFile(path, { salvage: true }, { clock: systemClock });
    assert.ok(sound);
    assert.equal(oldOrNew(path, damaged), "new");
  }
});

for (const [task, damage] of [
  ["reindex", disagree],
  ["vacuum", (path: string) => flip(path, freePages(path).trunk, 7, 0)],
] as const) {
  test(`FR-059 FR-060 a ${task} killed at any moment has happened or has not, and the next repair finishes it`, async (t) => {
    const place = new Place(t);
    await furnish(place, 6_000);
    const fixture = readFixture(place.path);
    damage(place.path);
    // The kills are spread across the time that an undisturbed one takes.
    const times: number[] = [];
    const timed = copied(t, place.folder);
    await run(t, task, timed, 0, () => times.push(performance.now()));
    const tookMs = Math.max(10, times.at(-1)! - times[0]!);
    for (let n = 0; n < KILLS; n++) {
      const path = copied(t, place.folder);
      await run(t, task, path, 0, (said, kill) => {
        if (said === "begun\n") setTimeout(kill, (n / KILLS) * tookMs);
      });
      const { sound, salvage } = await repairFile(path, { salvage: true }, { clock: systemClock });
      assert.ok(sound && salvage === null, "without losing anything");
      const now = readFixture(path);
      assert.deepEqual([now.inputs.size, now.ledger], [fixture.inputs.size, fixture.ledger]);
    }
  });
}

test("FR-008 a salvage on a full disk leaves the damaged file as it was and nothing else behind, says so, and works when there is room", async (t) => {
  const damaged = await damagedWithLog(t);
  const folder = mkdtempSync(join(tmpdir(), "outlive-disk-"));
  const mount = spawnSync("mount", ["-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], { encoding: "utf8" });
  t.after(() => {
    spawnSync("umount", ["-l", folder]);
    rmSync(folder, { recursive: true, force: true });
  });
  assert.equal(mount.status, 0, `This test needs a disk of its own (root on Linux): ${mount.stderr}`);
  const path = join(folder, "jobs.db");
  for (const suffix of ["", "-wal"]) copyFileSync(join(damaged.folder, `jobs.db${suffix}`), path + suffix);
  const ballast = join(folder, "ballast");
  const { bavail, bsize } = statfsSync(folder);
  // Room for the hold and for a part of the new file.
  writeFileSync(ballast, Buffer.alloc(Math.max(0, bavail * bsize - 200_000)));
  await assert.rejects(
    repairFile(path, { salvage: true }, { clock: systemClock }),
    says(ErrorCode.storeFull, /not enough room/, /the damaged file was not changed/),
  );
  assert.deepEqual(
    readdirSync(folder).filter((name) => /salvage|swap|damaged/.test(name)),
    [],
  );
  assert.equal(oldOrNew(path, damaged), "old");
  rmSync(ballast);
  assert.ok((await repairFile(path, { salvage: true }, { clock: systemClock })).sound);
  assert.equal(oldOrNew(path, damaged), "new");
});
