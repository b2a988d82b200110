// The CPU that a worker's process uses until its first job runs: what a restart costs. It is measured on the code as it is published.
import { execFile } from "node:child_process";
import { symlinkSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { median } from "../figure.ts";
import type { Metric } from "../harness.ts";

const run = promisify(execFile);
const ROOT = fileURLToPath(new URL("../../../", import.meta.url));
const PROGRAM = fileURLToPath(new URL("../programs/first-job.mjs", import.meta.url));
const RUN_MS = 60_000;

interface Passed {
  /** In ms since the process began: Node's own start, the package is loaded, the store is open, the first job runs. */
  readonly node: number;
  readonly loaded: number;
  readonly opened: number;
  readonly ours: number;
}

export const firstJob: Metric = {
  names: ["firstJobCpuMs"],
  async run(bench) {
    const folder = bench.folder();
    const code = join(folder, "code");
    bench.progress("firstJobCpuMs: building");
    await run(process.execPath, [join(ROOT, "scripts/build.mjs"), "--code", code], { cwd: ROOT, timeout: RUN_MS });
    symlinkSync(join(ROOT, "node_modules"), join(folder, "node_modules"));
    const url = await bench.store.place();
    const once = async (what: "prepare" | "work"): Promise<string> => {
      const args = [PROGRAM, code, url, join(folder, "cache"), what];
      return (await run(process.execPath, args, { cwd: folder, timeout: RUN_MS })).stdout;
    };
    await once("prepare");
    // What it compiles is in the cache from now on.
    await once("work");
    const rounds: Passed[] = [];
    for (const _ of bench.rounds("firstJobCpuMs", bench.pick(20, 5), 5))
      rounds.push(JSON.parse(await once("work")) as Passed);
    await bench.store.drop(url);
    const at = (step: keyof Passed): number => median(rounds.map((round) => round[step]));
    return [
      {
        name: "firstJobCpuMs",
        unit: "ms",
        ours: at("ours"),
        targets: [{ text: "< 150 ms", value: at("ours"), atMost: 150 }],
        detail: {
          how: "user and system time",
          rounds: rounds.length,
          node: at("node"),
          loaded: at("loaded"),
          opened: at("opened"),
        },
      },
    ];
  },
};
