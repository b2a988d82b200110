// Bugs that sit deeper than anything the simulator can wrap: they are written into a copy of the sources, and the laws have to see
// them there. Where a mutant can do it (proof/sim/mutants), it does.
import assert from "node:assert/strict";
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it, type TestContext } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { simulate } from "../proof/sim/history.ts";
import { only } from "../proof/sim/mutants/mutant.ts";

const ROOT = fileURLToPath(new URL("../", import.meta.url));
const SEEDS = 8;

describe("the simulator, with a bug in the sources", () => {
  it("sees a watcher that goes on with its watch after its machine was asleep", async (t) => {
    // Both that notice it: the detector by its own clocks, and maintenance by the age of its latest heartbeat.
    const edited = await simulatorWith(
      t,
      ["src/recovery/failure-detector.ts", "if (late || jumped) this.restart();", ""],
      ["src/recovery/maintenance.ts", "return this.#deps.clock.mono() - this.#wroteAtMono >", "return 0 >"],
    );
    const profile = only(
      ["money"],
      { suspend: 1 },
      { workers: 4, nemesisEveryMs: 2_000, slow: 0, stall: 0, requestLost: 0, answerLost: 0 },
    );
    const found: string[] = [];
    for (let seed = 1; seed <= SEEDS; seed++) {
      const { violation, lawBroken } = await edited(seed, { profile });
      if (violation !== null && lawBroken) found.push(violation);
      assert.equal((await simulate(seed, { profile })).violation, null, `seed ${seed} without the bug`);
    }
    assert.ok(found.length > 0, `not found within ${SEEDS} seeds`);
    for (const violation of found) assert.match(violation, /silent after a watch of .*: it was asleep itself$/);
  });

  it("sees a watcher that counts silence while no process could write to the store", async (t) => {
    const edited = await simulatorWith(t, ["src/recovery/maintenance.ts", "    this.#detector.restart();\n", ""]);
    const profile = only(
      ["money"],
      { blockStore: 1 },
      { workers: 4, nemesisEveryMs: 2_000, slow: 0, stall: 0, requestLost: 0, answerLost: 0 },
    );
    const found: string[] = [];
    for (let seed = 1; seed <= SEEDS; seed++) {
      const { violation, lawBroken } = await edited(seed, { profile });
      if (violation !== null && lawBroken) found.push(violation);
      assert.equal((await simulate(seed, { profile })).violation, null, `seed ${seed} without the bug`);
    }
    assert.ok(found.length > 0, `not found within ${SEEDS} seeds`);
  });

  it("sees a slot that never comes back, because the end of its attempt was refused", async (t) => {
    const freed = "if (ours) this.#held.remove(ours);";
    const kept = 'if (ours && answer.is !== "stale") this.#held.remove(ours);';
    const edited = await simulatorWith(t, ["src/worker/executor.ts", freed, kept]);
    const profile = only(
      ["money", "deaf"],
      { pause: 1 },
      { workers: 1, concurrency: 1, nemesisEveryMs: 1_000, slow: 0, stall: 0, requestLost: 0, answerLost: 0 },
    );
    const found: string[] = [];
    for (let seed = 1; seed <= SEEDS; seed++) {
      const { violation, lawBroken } = await edited(seed, { profile });
      if (violation !== null && lawBroken) found.push(violation);
      assert.equal((await simulate(seed, { profile })).violation, null, `seed ${seed} without the bug`);
    }
    assert.ok(found.length > 0, `not found within ${SEEDS} seeds`);
    // Whichever law sees it first: the worker holds nothing and takes nothing, or the history does not end.
    for (const violation of found) assert.match(violation, /there is work left$|^nobody polls: /);
  });
});

type Edit = readonly [file: string, from: string, to: string];

/** `simulate` of a copy of the sources in which `from` of each edit, which is there once, is `to`. */
async function simulatorWith(t: TestContext, ...edits: readonly Edit[]): Promise<typeof simulate> {
  const copy = mkdtempSync(join(tmpdir(), "outlive-sim-source-"));
  t.after(() => rmSync(copy, { recursive: true, force: true }));
  for (const part of ["src", "proof/sim", "package.json"])
    cpSync(join(ROOT, part), join(copy, part), { recursive: true });
  symlinkSync(join(ROOT, "node_modules"), join(copy, "node_modules"));
  for (const [file, from, to] of edits) {
    const parts = readFileSync(join(copy, file), "utf8").split(from);
    assert.equal(parts.length, 2, `${JSON.stringify(from)} in ${file}`);
    writeFileSync(join(copy, file), parts.join(to));
  }
  const module = (await import(pathToFileURL(join(copy, "proof/sim/history.ts")).href)) as {
    simulate: typeof simulate;
  };
  return module.simulate;
}
