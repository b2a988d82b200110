// Preloaded into a process: its wall clock, in every thread, is off by OUTLIVE_TEST_CLOCK_MS, or by what the file
// OUTLIVE_TEST_CLOCK_FILE says, soon after it says so. The monotonic clock is right. OUTLIVE_TEST_CLOCK_ONLY=supervisor leaves
// the worker processes of `outlive work` alone.
import { readFileSync } from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import threads, { isMainThread, type WorkerOptions } from "node:worker_threads";

const { OUTLIVE_TEST_CLOCK_MS: fixed, OUTLIVE_TEST_CLOCK_FILE: file, OUTLIVE_TEST_CLOCK_ONLY: only } = process.env;
const READ_EVERY_MS = 20;

if (only === undefined || process.send === undefined) {
  const real = Date.now;
  let ms = Number(fixed ?? 0);
  let readAt = Number.NEGATIVE_INFINITY;
  const shift = (): number => {
    if (file === undefined || performance.now() - readAt < READ_EVERY_MS) return ms;
    readAt = performance.now();
    try {
      ms = Number(readFileSync(file, "utf8"));
    } catch {
      // It is right until there is a file.
    }
    return ms;
  };
  Date.now = () => real() + shift();
  if (isMainThread) shiftThreads();
}

/** The maintenance thread does not inherit what the process preloads. */
function shiftThreads(): void {
  const Thread = threads.Worker;
  threads.Worker = class extends Thread {
    constructor(program: string | URL, options: WorkerOptions = {}) {
      super(program, { ...options, execArgv: [...(options.execArgv ?? []), "--import", import.meta.url] });
    }
  };
  syncBuiltinESMExports();
}
