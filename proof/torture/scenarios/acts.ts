// What the recorded programs do: one act is one run of one process, short, and of everything that writes.
import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { dirname } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { fileURLToPath } from "node:url";
import { named, type Stage } from "./stage.ts";

type Act = (stage: Stage) => Promise<void>;

export const ACTS = {
  /** The file as most scenarios find it: migrated, with the user's tables, closed cleanly. */
  async prepare(stage) {
    const engine = await stage.open();
    await stage.makeTables(engine);
    await engine.close();
  },

  /** No file yet: creation, journal mode, migration, and the very first promises. Several: a dozen kills that are spread over all calls also come after one. */
  async create(stage) {
    const engine = await stage.open();
    for (const id of named("first", 12)) await stage.note(engine, id);
    await engine.close();
  },

  /** One at a time, many in one turn, many in one call, in a user's transaction, and one that is cancelled. */
  async enqueue(stage) {
    const engine = await stage.open();
    for (const id of named("single", 4)) await stage.note(engine, id);
    await Promise.all(named("turn", 5).map((id, n) => stage.transfer(engine, id, n)));
    await stage.bulk(engine, named("bulk", 40), (id) => `bulk ${id} `.repeat(20));
    for (const id of named("order", 3)) await stage.order(engine, id);
    await engine.cancel("single-1");
    stage.say({ said: "cancelled", id: "single-1" });
    await engine.close();
  },

  /** Plain jobs and steps, settled in groups. */
  async settle(stage) {
    const engine = await stage.open();
    const ids = [...(await stage.bulk(engine, named("plain", 12), (id) => id)), await stage.step(engine, "steps-1", 1)];
    ids.push(await stage.step(engine, "steps-2", 2));
    await stage.work(engine, ids);
    await engine.close();
  },

  /** The user's rows and the success in one transaction. */
  async commit(stage) {
    const engine = await stage.open();
    const ids = await Promise.all(named("move", 12).map((id, n) => stage.transfer(engine, id, n)));
    await stage.work(engine, ids);
    await engine.close();
  },

  /** A worker that takes others with it when it dies in the middle of a job. */
  async die(stage) {
    const engine = await stage.open();
    for (const id of named("beside", 3)) await stage.step(engine, id, 0);
    await engine.enqueue(stage.kinds.fatal, { n: 7 }, { id: "fatal" });
    stage.say({ said: "enqueued", ids: ["fatal"] });
    await engine.start({ concurrency: 10 });
    await stage.untilEnded(["fatal"]);
  },

  /** Recovery at the open, then the rest of the work. */
  async rescue(stage) {
    const engine = await stage.open();
    await stage.work(engine, ["fatal"]);
    await engine.close();
  },

  /** Retention, by the connection of maintenance, next to a worker that goes on. */
  async purge(stage) {
    const before = await stage.open();
    const ids = [
      ...(await stage.bulk(before, named("old", 10), (id) => id)),
      await stage.transfer(before, "old-move", 1),
    ];
    await stage.work(before, ids);
    await before.close();
    stage.say({ said: "purging" });
    const engine = await stage.open({ retention: { finished: "1ms" }, heartbeat: { sweep: "100ms" } });
    const late = await stage.transfer(engine, "late-move", 2);
    const worker = await engine.start();
    await stage.untilEnded([late]);
    while ((await engine.get(ids[0]!)) !== null) await new Promise((resolve) => setTimeout(resolve, 10));
    await worker.stop();
    await engine.close();
  },

  /** Every kind of checkpoint between promises, by a second connection. */
  async checkpoint(stage) {
    const engine = await stage.open();
    const worker = await engine.start();
    const second = new DatabaseSync(stage.path);
    second.exec(`PRAGMA synchronous = ${stage.durability === "full" ? "FULL" : "NORMAL"}`);
    for (const [turn, mode] of ["PASSIVE", "RESTART", "TRUNCATE", "PASSIVE", "FULL"].entries()) {
      const id = await stage.transfer(engine, `before-${turn}`, 1);
      await stage.untilEnded([id]);
      second.exec(`PRAGMA wal_checkpoint(${mode})`);
      await stage.note(engine, `after-${turn}`);
    }
    second.close();
    await worker.stop();
    await engine.close();
  },

  /** The last connection's close removes the WAL, the next open makes a new one: again and again. */
  async reopen(stage) {
    for (const id of named("visit", 4)) {
      const engine = await stage.open();
      await stage.note(engine, id);
      await stage.order(engine, `${id}-order`);
      await engine.close();
    }
  },

  /**
   * Inputs so large that SQLite checkpoints on its own (1,000 pages) and restarts the WAL. Most of those pages another process has
   * written, for this one is killed at each of its own calls.
   */
  async large(stage) {
    const engine = await stage.open();
    await once(beside("swell", stage), "exit");
    for (const id of named("large", 4)) await stage.note(engine, id, id.padEnd(120_000, "-"));
    await stage.transfer(engine, "after-large", 1);
    await engine.close();
  },

  /** The other process of `large`: a user's own program, which writes the same few pages again and again. */
  async swell(stage) {
    const own = new DatabaseSync(stage.path, { timeout: 5_000 });
    own.exec("PRAGMA wal_autocheckpoint = 0; CREATE TABLE IF NOT EXISTS ballast (n INTEGER PRIMARY KEY, text TEXT)");
    const write = own.prepare("REPLACE INTO ballast VALUES (?, ?)");
    for (let turn = 0; turn < 48; turn++) {
      own.exec("BEGIN IMMEDIATE");
      for (let n = 0; n < 20; n++) write.run(n, String(turn).padEnd(3_500, "-"));
      own.exec("COMMIT");
    }
    own.close();
  },

  /** Goes on with whatever a power loss left: more jobs, and a worker that runs what it finds. */
  async resume(stage) {
    const engine = await stage.open();
    await stage.makeTables(engine);
    const ids = [await stage.note(engine, "resumed-1"), await stage.transfer(engine, "resumed-2", 5)];
    ids.push(await stage.step(engine, "resumed-3", 6), await stage.order(engine, "resumed-4"));
    await stage.work(engine, ids);
    await engine.close();
  },

  /** A producer here and a worker in another process. */
  async fleet(stage) {
    const engine = await stage.open();
    const child = beside("serve", stage);
    await once(child, "message");
    for (const id of named("shared", 8)) await stage.transfer(engine, id, 3);
    while ((await engine.counts()).some(({ ready, running }) => ready + running > 0))
      await new Promise((resolve) => setTimeout(resolve, 10));
    child.send("stop");
    await once(child, "exit");
    await engine.close();
  },

  /** The other process of `fleet`, until a message stops it or its parent is dead. */
  async serve(stage) {
    const over = Promise.race([once(process, "message"), once(process, "disconnect")]);
    const engine = await stage.open();
    const worker = await engine.start();
    process.send?.("working", () => {});
    await over;
    await worker.stop();
    await engine.close();
    if (process.connected) process.disconnect();
  },
} as const satisfies Record<string, Act>;

export type ActName = keyof typeof ACTS;

/** Another process on the same stage. It has our standard error, so that waiting for the end of that waits for both. */
function beside(act: ActName, { path, durability }: Stage): ChildProcess {
  const program = fileURLToPath(new URL("program.ts", import.meta.url));
  return fork(program, [dirname(path), act, durability], { stdio: "inherit" });
}
