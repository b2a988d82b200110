// strace, the only way in: the rig sees and kills at system calls, and the engine has no hook for it. Where it can't run, that is
// an error with the next thing to do, never a quiet success.
import { spawn, spawnSync, type SpawnSyncReturns } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { ActName } from "./scenarios/acts.ts";
import type { Durability } from "./scenarios/stage.ts";

/** Everything that changes a file, its length or its name, and what makes that durable. */
export const FILE_CALLS =
  "openat,open,creat,pwrite64,write,pwritev,pwritev2,writev,ftruncate,truncate,fallocate,copy_file_range,sendfile," +
  "fsync,fdatasync,sync_file_range,unlink,unlinkat,rename,renameat,renameat2,link,linkat";

/** An act takes a second; one that hangs is ended, by a signal that no scenario uses. */
const LIMIT_MS = 120_000;

const PROGRAM = fileURLToPath(new URL("scenarios/program.ts", import.meta.url));

export interface Play {
  readonly act: ActName;
  readonly folder: string;
  readonly durability: Durability;
}

/** How a process ended, and the end of what it wrote to its standard error. */
export interface End {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stderr: string;
}

/** Throws with what to do if strace is not there or may not trace. In CI, where the machine is disposable, it is installed. */
export function ensureStrace(): void {
  let tried = tryStrace();
  if (isMissing(tried) && process.env["CI"] === "true" && process.getuid?.() === 0) {
    const install = ["-o", "DPkg::Lock::Timeout=120", "install", "--yes", "--no-install-recommends", "strace"];
    spawnSync("apt-get", install, { stdio: ["ignore", 2, 2] });
    tried = tryStrace();
  }
  if (tried.status === 0) return;
  if (isMissing(tried))
    throw new Error(
      "The rig sees system calls through strace, which is not installed. Install it (Debian, Ubuntu: apt-get install strace) and try again. Nothing was run.",
    );
  throw new Error(
    `strace can't trace here: ${(tried.stderr || String(tried.error)).trim()}. It needs version 5.3 or later, and in a container ` +
      "the right to ptrace (--cap-add=SYS_PTRACE). Nothing was run.",
  );
}

function tryStrace(): SpawnSyncReturns<string> {
  const options = ["-f", "--seccomp-bpf", "-e", "trace=fsync", "-o", "/dev/null", "true"];
  return spawnSync("strace", options, { encoding: "utf8" });
}

function isMissing({ error }: SpawnSyncReturns<string>): boolean {
  return error !== undefined && "code" in error && error.code === "ENOENT";
}

/** Plays an act; with `options`, under a strace with them (`-f`: it watches all threads). `codeCache` is a folder that makes later starts cheaper. */
export function play({ act, folder, durability }: Play, options?: readonly string[], codeCache?: string): Promise<End> {
  const program = [process.execPath, "--disable-warning=ExperimentalWarning", PROGRAM, folder, act, durability];
  const [command, ...rest] = options === undefined ? program : ["strace", ...options, ...program];
  const env = codeCache === undefined ? process.env : { ...process.env, NODE_COMPILE_CACHE: codeCache };
  // A group of its own, so that strace and what it watches can be ended together.
  const child = spawn(command!, rest, { stdio: ["ignore", "ignore", "pipe"], env, detached: true });
  let stderr = "";
  const limit = setTimeout(() => {
    stderr += `\nnot over after ${LIMIT_MS / 1_000} s`;
    if (child.pid !== undefined) process.kill(-child.pid, "SIGTERM");
  }, LIMIT_MS);
  child.stderr.on("data", (data: Buffer) => (stderr = (stderr + data.toString()).slice(-4_000)));
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code, signal) => {
      clearTimeout(limit);
      resolve({ code, signal, stderr });
    });
  });
}

/** Throws unless the act was played to its end, which for one that kills itself is SIGKILL. */
export function assertPlayed({ act }: Play, { code, signal, stderr }: End): void {
  const played = act === "die" ? signal === "SIGKILL" || code === 137 : code === 0;
  if (!played) throw new Error(`The act ${act} ended with ${signal ?? `exit code ${code}`}:\n${stderr}`);
}
