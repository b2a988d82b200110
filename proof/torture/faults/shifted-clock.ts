// Preloaded into the processes of a run: the wall clock of a process can be moved while it runs, as an operator, NTP or a resumed virtual
// machine moves it. It is what `Date` says, in every thread; monotonic clocks and timers are left alone. Nothing is shifted until a file
// says so: `all` for every process, or one named after the pid.
import { readFileSync } from "node:fs";
import { join } from "node:path";

const RealDate = Date;
/** How long a thread may go on with the shift that it read last. */
const READ_EVERY_MS = 10;
const folder = process.env["OUTLIVE_TORTURE_CLOCKS"];
let shiftMs = 0;
let readAt = -Infinity;

function now(): number {
  const mono = performance.now();
  if (folder !== undefined && mono - readAt >= READ_EVERY_MS) {
    readAt = mono;
    shiftMs = shiftIn(join(folder, "all")) + shiftIn(join(folder, String(process.pid)));
  }
  return RealDate.now() + shiftMs;
}

function shiftIn(file: string): number {
  try {
    return Number(readFileSync(file, "utf8"));
  } catch {
    return 0;
  }
}

globalThis.Date = new Proxy(RealDate, {
  apply: () => new RealDate(now()).toString(),
  construct: (target, args, newTarget) =>
    Reflect.construct(target, args.length === 0 ? [now()] : args, newTarget) as object,
  get: (target, key, receiver) => (key === "now" ? now : (Reflect.get(target, key, receiver) as unknown)),
});
