// Preloaded into a supervisor that runs as root in a PID namespace of its own: its first worker process gets pid 500, the next 600.
import { ChildProcess } from "node:child_process";
import { writeFileSync } from "node:fs";
import { isMainThread } from "node:worker_threads";

interface Spawning {
  spawn: (this: Spawning, options: object) => number;
}

if (isMainThread && process.pid !== 1 && process.send === undefined) {
  const prototype = ChildProcess.prototype as unknown as Spawning;
  const { spawn: real } = prototype;
  let next = 500;
  prototype.spawn = function spawn(this: Spawning, options: object): number {
    writeFileSync("/proc/sys/kernel/ns_last_pid", String(next - 1));
    next += 100;
    return real.call(this, options);
  };
}
