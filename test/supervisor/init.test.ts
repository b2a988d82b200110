// As PID 1 of a container: signals are passed on, orphans are reaped, the exit code is the supervisor's. Needs root and `unshare`.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { job } from "../../src/index.ts";
import { untilState, untilTrue } from "../support/processes.ts";
import { Fleet } from "./fleet.ts";

const UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
const able = spawnSync(UNSHARE[0]!, [...UNSHARE.slice(1), "true"]).status === 0;

test(
  "PID 1 reaps orphans, passes SIGTERM on and ends as the supervisor does",
  { skip: !able && "no unshare" },
  async (t) => {
    const fleet = new Fleet(t);
    const orphan = job("orphan");
    const engine = await fleet.place.engine({ jobs: [orphan] });
    // A handler whose subprocess outlives the subprocess that started it: an orphan that falls to PID 1 and ends there.
    writeFileSync(
      join(fleet.place.folder, "orphan.ts"),
      `import { spawnSync } from "node:child_process";
     import { job } from ${JSON.stringify(fileURLToPath(new URL("../../src/index.ts", import.meta.url)))};
     export const orphan = job("orphan").handle(() => void spawnSync("sh", ["-c", "sleep 0.05 & exit 0"]));`,
    );
    const supervised = fleet.work({ globs: ["orphan.ts"], under: UNSHARE });
    await supervised.said(/ works on /);
    const [started] = await supervised.said(/supervisor \(pid \d+\) starts/);
    assert.notEqual(started!["pid"], 1, "a shell is PID 1");
    for (let i = 0; i < 3; i++) {
      const { id } = await engine.enqueue(orphan, null);
      await untilState(engine, id, "succeeded");
    }
    const init = initOf(supervised.process.pid!);
    await untilTrue(
      () => childrenOf(init).map(commandOf),
      (commands) => commands.length === 1 && !commands.includes("sleep"),
      "no orphan is left, dead or alive",
    );
    process.kill(init, "SIGTERM");
    assert.deepEqual(await supervised.exited, { code: 0, signal: null });
    assert.ok(supervised.lines.some(({ message }) => message.startsWith("SIGTERM: ")));
    assert.deepEqual(await engine.incidents(), []);
  },
);

/** The namespace's PID 1, as seen from here: the child of unshare. */
function initOf(unshare: number): number {
  const [init] = childrenOf(unshare);
  return init!;
}

function childrenOf(parent: number): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        return readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)!.split(" ")[1] === String(parent);
      } catch {
        return false;
      }
    });
}

function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/comm`, "utf8").trim();
  } catch {
    return "";
  }
}
