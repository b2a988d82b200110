// C24: a full disk inside `run.commit` was reported as COMMIT_ROLLED_BACK, with a hint about ON CONFLICT ROLLBACK, and the job paid for
// it with an error.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ErrorCode, job } from "../../src/index.ts";
import { sqlite, type SqliteTransaction } from "../../src/sqlite.ts";
import { says } from "../engine/engines.ts";
import { attemptsAllowed } from "../support/former-names.ts";
import { untilTrue } from "../support/processes.ts";
import { SmallDisk } from "../support/small-disk.ts";

/** One error is the end of such a job. */
const retry = { ...attemptsAllowed(1), backoff: { base: "50ms", max: "200ms" } } as const;
/** More than SQLite's cache holds: it has to write in the middle of the transaction, fails, and rolls back. */
const insert = (tx: SqliteTransaction): void => void tx.run("INSERT INTO effects VALUES (zeroblob(4000000))");

test("C24: a full disk inside run.commit is STORE_FULL, costs the job nothing, and the job runs again when there is room", async (t) => {
  const disk = new SmallDisk(t, "24m");
  const refusals: unknown[] = [];
  const note = job<null>("note", { retry }).handle(async (_, run) => {
    if (run.attempt === 1) disk.fill();
    try {
      await run.commit(sqlite, insert);
    } catch (thrown) {
      refusals.push(thrown);
      throw new Error("the commit failed", { cause: thrown });
    }
  });
  const engine = await disk.engine([note]);
  await engine.transaction(sqlite, (tx) => tx.exec("CREATE TABLE effects (data BLOB)"));
  const { id } = await engine.enqueue(note, null);
  await engine.start();
  await untilTrue(
    () => refusals.length,
    (count) => count > 0,
    "the commit was refused",
  );
  disk.makeRoom();
  const { state } = await untilTrue(
    async () => (await engine.get(id))!,
    (found) => found.state === "succeeded" || found.state === "dead",
    "the job has ended",
  );
  assert.equal(state, "succeeded");
  for (const refusal of refusals) says(ErrorCode.storeFull, `committing job ${id}`, "Free some disk space")(refusal);
  const { counters, history } = (await engine.get(id))!;
  assert.deepEqual(
    { errors: counters.errors, crashes: counters.crashes, timeouts: counters.timeouts },
    { errors: 0, crashes: 0, timeouts: 0 },
  );
  assert.deepEqual(
    new Set(history.map(({ event, reason }) => `${event}: ${reason}`)),
    new Set(["release: the store was full"]),
  );
  const rows = await engine.transaction(sqlite, (tx) => tx.get<{ n: number }>("SELECT count(*) AS n FROM effects")!.n);
  assert.equal(rows, 1);
});

test("C24: a callback that swallows the error of a full disk is refused with STORE_FULL, too", async (t) => {
  const disk = new SmallDisk(t, "24m");
  const engine = await disk.engine([]);
  await engine.transaction(sqlite, (tx) => tx.exec("CREATE TABLE effects (data BLOB)"));
  disk.fill();
  const swallowed = engine.transaction(sqlite, (tx) => {
    try {
      insert(tx);
    } catch {
      return "it went well";
    }
    return "unreachable";
  });
  await assert.rejects(swallowed, says(ErrorCode.storeFull, "a transaction of yours"));
  const wrapped = engine.transaction(sqlite, (tx) => {
    try {
      insert(tx);
    } catch (thrown) {
      throw new Error("in other words", { cause: thrown });
    }
  });
  await assert.rejects(wrapped, says(ErrorCode.storeFull));
  disk.makeRoom();
  await engine.transaction(sqlite, insert);
});

test("C24: a step that finds no room costs the job nothing", async (t) => {
  const disk = new SmallDisk(t, "8m");
  let refusals = 0;
  const note = job<null>("note", { retry }).handle(async (_, run) => {
    if (run.attempt === 1) disk.fill();
    await run
      .step("large", () => "x".repeat(1_000_000))
      .catch((thrown: unknown) => {
        refusals++;
        throw thrown;
      });
  });
  const engine = await disk.engine([note]);
  const failures: string[] = [];
  engine.on("store.failed", ({ doing }) => void failures.push(doing));
  const { id } = await engine.enqueue(note, null);
  await engine.start();
  await untilTrue(
    () => refusals,
    (count) => count > 0,
    "the step was refused",
  );
  disk.makeRoom();
  await untilTrue(
    async () => (await engine.get(id))!.state,
    (state) => state === "succeeded" || state === "dead",
    "the job has ended",
  );
  assert.deepEqual([(await engine.get(id))!.state, (await engine.get(id))!.counters.errors], ["succeeded", 0]);
  assert.ok(failures.includes(`running job ${id}`), `it is reported: ${failures.join(", ")}`);
});
