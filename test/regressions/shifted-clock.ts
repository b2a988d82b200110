// Preloaded into a process: its wall clock, in every thread, is off by OUTLIVE_TEST_CLOCK_MS, or by what the file
// OUTLIVE_TEST_CLOCK_FILE says from the moment in which it says so. The monotonic clock is right. With OUTLIVE_TEST_CLOCK_ONLY
// only the supervisor, or only its workers, are off.
import { readFileSync } from "node:fs";

const { OUTLIVE_TEST_CLOCK_MS: fixed, OUTLIVE_TEST_CLOCK_FILE: file, OUTLIVE_TEST_CLOCK_ONLY: only } = process.env;
const isWorker = process.send !== undefined;
const real = Date.now;

function shift(): number {
  if (file === undefined) return Number(fixed ?? 0);
  try {
    return Number(readFileSync(file, "utf8"));
  } catch {
    return 0;
  }
}

if (only === undefined || (only === "worker") === isWorker) Date.now = () => real() + shift();
