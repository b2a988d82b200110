// A salvage, a REINDEX or a VACUUM in a separate process, killed at the n-th change that it makes to the file system, or by the
// parent at any moment after "begun".
import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";

const [task, path, killAt = "0"] = process.argv.slice(2) as [string, string, string?];
let calls = 0;

/** Every second point is before the call, the others are after it. */
function killing<Call extends (...given: never[]) => unknown>(call: Call): Call {
  const die = (): void => {
    if (++calls === Number(killAt)) process.kill(process.pid, "SIGKILL");
  };
  return ((...given: never[]) => {
    die();
    const answer = call(...given);
    die();
    return answer;
  }) as Call;
}

if (task === "salvage") {
  for (const name of ["renameSync", "linkSync", "rmSync", "fsyncSync", "writeFileSync", "chmodSync"] as const)
    fs[name] = killing(fs[name] as never);
  syncBuiltinESMExports();
}

const { salvage } = await import("../../src/stores/sqlite/doctor/salvage/salvage.ts");
const { reindex, vacuum } = await import("../../src/stores/sqlite/doctor/repair.ts");
fs.writeSync(1, "begun\n");
if (task === "salvage") salvage(path, Date.now(), ({ what }) => void fs.writeSync(1, `${what}\n`));
else if (task === "reindex") reindex(path);
else vacuum(path);
fs.writeSync(1, `done ${calls}\n`);
// As doctor/child.ts ends: without closing what it keeps open.
process.kill(process.pid, "SIGKILL");
