// A process is killed with SIGKILL in the middle of a bulk change. What it changed is changed with all its consequences, the audit has exactly that number, and a
// second run does the rest.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { type EngineOptions, job, open } from "../../src/index.ts";
import { freshSchema } from "../support/postgres.ts";
import { Child, Place } from "../support/processes.ts";
import { freshName } from "../support/redis.ts";

const mail = job<{ n: number }>("mail");
const JOBS = 2_000;

const STORES: Readonly<Record<string, (t: TestContext) => Promise<{ url: string; options: EngineOptions }>>> = {
  sqlite: async (t) => ({ url: new Place(t).url, options: {} }),
  postgres: async (t) => {
    const { url, schema } = await freshSchema(t);
    return { url, options: { postgres: { schema } } };
  },
  redis: async (t) => {
    const { url, name } = await freshName(t);
    return { url: `${url}?store=${name}`, options: {} };
  },
};

for (const [store, place] of Object.entries(STORES)) {
  test(`${store}: a process that is killed in the middle of a bulk removal leaves whole chunks, and each is in the audit`, async (t) => {
    const { url, options } = await place(t);
    const engine = await open(url, { ...options, jobs: [mail], logger: false });
    t.after(() => engine.close());
    await engine.enqueueMany(
      mail,
      Array.from({ length: JOBS }, (_, n) => ({ n })),
    );
    assert.equal((await engine.bulk("cancel", {})).changed, JOBS);

    const file = fileURLToPath(new URL("../support/bulk-process.ts", import.meta.url));
    const child = new Child(fork(file, [url, JSON.stringify(options)], { stdio: ["ignore", "ignore", "pipe", "ipc"] }));
    t.after(() => child.kill());
    await child.until(({ fact, changed }) => fact === "chunk" && (changed as number) >= 300, "three chunks");
    child.kill();
    await child.exited;
    // A server may still be busy with the chunk that was sent before the kill.
    const counted = async (): Promise<readonly [number, number]> => {
      const [entry] = await engine.audit({ actor: "child" });
      const { cancelled } = (await engine.counts()).find(({ kind }) => kind === "mail")!;
      return [entry?.count ?? 0, cancelled];
    };
    let [removed, left] = await counted();
    for (let again = await counted(); again[0] !== removed; again = await counted()) [removed, left] = again;
    assert.ok(removed >= 300 && removed < JOBS, `${removed} were removed`);
    assert.equal(removed % 100, 0, "a chunk is whole");
    assert.equal(removed + left, JOBS, "the audit has what was really removed");
    assert.deepEqual(await engine.operator.inconsistencies(), []);

    const rest = await engine.bulk("remove", { state: "cancelled" }, { actor: "parent" });
    assert.equal(rest.changed, left);
    assert.deepEqual((await engine.list()).jobs, []);
  });
}
