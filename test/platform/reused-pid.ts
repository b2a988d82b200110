// Runs as root in a PID namespace of its own: kills a process, lets the kernel give its pid to another, and prints what is
// found of the first and of the second.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { processIdentity, processState, readProcessStat } from "../../src/platform/identity.ts";

const self = processIdentity();
const first = spawn("sleep", ["1000"]);
const pid = first.pid!;
const startTicks = readProcessStat(pid)!.startTicks;
first.kill("SIGKILL");
await once(first, "exit");
const found = { gone: processState(self, { ...self, pid, startTicks }), reused: "", second: "" };
for (;;) {
  writeFileSync("/proc/sys/kernel/ns_last_pid", String(pid - 1));
  const second = spawn("sleep", ["1000"]);
  const now = readProcessStat(second.pid!)!.startTicks;
  if (second.pid === pid && now !== startTicks) {
    found.reused = processState(self, { ...self, pid, startTicks });
    found.second = processState(self, { ...self, pid, startTicks: now });
  }
  second.kill("SIGKILL");
  await once(second, "exit");
  if (found.reused) break;
}
process.stdout.write(`${JSON.stringify(found)}\n`);
