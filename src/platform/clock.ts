// The real clock, timers and randomness, for core's ports. A pending timer keeps the process alive, because some caller
// awaits its end.
import { randomBytes } from "node:crypto";
import type { Clock, Random } from "../job/time.ts";

export const systemClock: Clock = {
  now: () => Date.now(),
  // hrtime has one origin for all threads of a process; performance.now has one per thread.
  mono: () => Number(process.hrtime.bigint()) / 1e6,
  after(ms, task) {
    const timer = setTimeout(task, ms);
    return () => clearTimeout(timer);
  },
  soon(task) {
    setImmediate(task);
  },
};

export const systemRandom: Random = {
  next: () => Math.random(),
  hex: (count) => randomBytes(count).toString("hex"),
};
