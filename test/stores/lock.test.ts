// The liveness lock of SQLite: what it proves, and what happens when several processes look at once.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { lockedFiles, lockFileLiveness, makeSideFolder } from "../../src/stores/sqlite/lock.ts";
import { Child } from "../support/processes.ts";
import { aWorkerRow } from "../support/samples.ts";

function place(t: TestContext): { database: string; folder: string } {
  const root = mkdtempSync(join(tmpdir(), "outlive-lock-"));
  t.after(() => rmSync(root, { recursive: true, force: true }));
  const database = join(root, "jobs.db");
  return { database, folder: makeSideFolder(database) };
}

test("a lock that is held is seen as held by probes and by the kernel's list, and is free when it is dropped", async (t) => {
  const { database } = place(t);
  const mine = lockFileLiveness(database, "boot");
  const theirs = lockFileLiveness(database, "boot");
  const { evidence, drop } = await mine.take("w1");
  const row = aWorkerRow({ id: "w1", bootId: "boot", lock: evidence });
  assert.equal(await theirs.probe(row), "held");
  assert.ok(lockedFiles().has(evidence.identity!));
  assert.deepEqual(await theirs.probeAll!([row, row]), ["held", "held"]);
  await drop(false);
  assert.equal(await theirs.probe(row), "free");
  assert.deepEqual(await theirs.probeAll!([row, row]), ["free", "free"]);
  assert.equal(await theirs.clean(row), true);
  assert.equal(await theirs.probe(row), "unknown", "a missing file proves nothing");
});

test("another boot, another inode and no lock at all prove nothing", async (t) => {
  const { database } = place(t);
  const liveness = lockFileLiveness(database, "boot");
  const { evidence, drop } = await lockFileLiveness(database, "boot").take("w1");
  await drop(false);
  const row = aWorkerRow({ id: "w1", bootId: "boot", lock: evidence });
  assert.equal(await liveness.probe(row), "free");
  assert.equal(await liveness.probe({ ...row, bootId: "other" }), "unknown");
  assert.equal(await liveness.probe({ ...row, lock: { ...evidence, identity: "00:00:1" } }), "unknown");
  assert.equal(await liveness.probe({ ...row, lock: { name: null, identity: null } }), "unknown");
});

test("a lock is taken although other processes clear stray locks without pause, and it keeps its name", async (t) => {
  const { database, folder } = place(t);
  const clearing = Array.from({ length: 2 }, () => {
    return new Child(fork(fileURLToPath(new URL("../support/clear-strays.ts", import.meta.url)), [database]));
  });
  await Promise.all(clearing.map((child) => child.untilFact("clearing")));
  const liveness = lockFileLiveness(database, "boot");
  for (let n = 0; n < 1_000; n++) {
    const { evidence, drop } = await liveness.take(`w${n}`);
    assert.ok(statSync(join(folder, evidence.name!)).ino > 0);
    await drop(true);
  }
  for (const child of clearing) child.kill();
  await Promise.all(clearing.map(({ exited }) => exited));
});

test("a lock that its living holder gives up is never seen as free, which would prove a death", async (t) => {
  const { database } = place(t);
  const prober = fork(fileURLToPath(new URL("../support/lock-prober.ts", import.meta.url)), [database], {
    execArgv: ["--disable-warning=ExperimentalWarning"],
  });
  t.after(() => prober.kill());
  const answer = async (): Promise<unknown> => (await once(prober, "message"))[0];
  assert.equal(await answer(), "ready");
  const liveness = lockFileLiveness(database, "boot");
  for (let n = 0; n < 300; n++) {
    const { evidence, drop } = await liveness.take(`w${n}`);
    const probing = answer();
    prober.send(aWorkerRow({ id: `w${n}`, bootId: "boot", lock: evidence }));
    assert.equal(await probing, "held");
    const seen = answer();
    await drop(true);
    assert.equal(await seen, "unknown", `lock ${n}`);
  }
});
