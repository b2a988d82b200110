// The parent's side of the doctor: everything that reads or writes a whole file runs in a child process, because node:sqlite
// can't be interrupted and would stop this process's loop for minutes. The child can be killed at any moment; it harms nothing.
import { type ChildProcess, fork } from "node:child_process";
import { ErrorCode, OutliveError } from "../../../core/errors.ts";
import type { Answers, Progress, Task, Told } from "./tasks.ts";

// Sources are run as .ts, the package as .js; tsc rewrites imports but not this.
const CHILD = new URL(`./child${import.meta.url.endsWith(".ts") ? ".ts" : ".js"}`, import.meta.url);

/** Timers take no more. */
const LONGEST_MS = 2 ** 31 - 1;

export interface DoctorOptions {
  /** The child is killed when it is over. Default: no limit. */
  readonly limitMs?: number;
  readonly onProgress?: (progress: Progress) => void;
  readonly signal?: AbortSignal;
  /** The child keeps nobody alive. Default false. */
  readonly background?: boolean;
}

/** Runs one task. Answers null if its limit was over before it was done; throws what the child refused. */
export function inChild<Name extends Task["do"]>(
  task: Task & { readonly do: Name },
  options: DoctorOptions = {},
): Promise<Answers[Name] | null> {
  const { limitMs = Number.POSITIVE_INFINITY, onProgress, signal, background = false } = options;
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const child = fork(CHILD, [], {
      execArgv: ["--disable-warning=ExperimentalWarning"],
      stdio: ["ignore", "ignore", "pipe", "ipc"],
    });
    if (background) letGo(child);
    let over = false;
    let stderr = "";
    const kill = (): void => void child.kill("SIGKILL");
    const timer =
      limitMs <= LONGEST_MS
        ? setTimeout(() => {
            over = true;
            kill();
          }, limitMs)
        : undefined;
    let told: Told | undefined;
    child.stderr?.on("data", (data: Buffer) => (stderr = `${stderr}${data.toString()}`.slice(-4_000)));
    child.on("message", (message: Told) => {
      if (message.type === "progress") onProgress?.(message);
      else told = message;
    });
    signal?.addEventListener("abort", kill, { once: true });
    child.on("error", reject);
    // What it said last may arrive after its end: it is over when the channel is closed, too.
    const silent = new Promise<void>((heard) => void child.once("disconnect", heard));
    child.on("close", (code, killed) => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", kill);
      void silent.then(() => {
        if (told?.type === "answer") resolve(told.value as Answers[Name]);
        else if (told?.type === "refused") reject(refusal(told));
        else if (over) resolve(null);
        else reject(signal?.aborted ? (signal.reason as Error) : died(task, code, killed, stderr));
      });
    });
    child.send(task, (error) => void (error && kill()));
  });
}

function letGo(child: ChildProcess): void {
  child.unref();
  child.channel?.unref();
  (child.stderr as unknown as { unref?: () => void } | null)?.unref?.();
}

function refusal({ code, what, hint, data }: Extract<Told, { type: "refused" }>): Error {
  return code === null ? new Error(what) : new OutliveError(code as ErrorCode, what, hint, data);
}

function died(task: Task, code: number | null, signal: string | null, stderr: string): OutliveError {
  return new OutliveError(
    ErrorCode.storeFailed,
    `The process that was to ${task.do} ${task.path} ended without an answer (${signal ?? `exit code ${code}`}).`,
    `It is safe to try again.${stderr === "" ? "" : ` It said: ${stderr.trim()}`}`,
    { path: task.path, task: task.do, code, signal },
  );
}
