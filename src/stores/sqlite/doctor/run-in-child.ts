// Runs one task in a child process. Everything that reads or writes a whole file runs there, because node:sqlite can't be
// interrupted and would stop this process's event loop for minutes. The child can be killed at any moment without harm.
import { type ChildProcess, fork } from "node:child_process";
import { ErrorCode, OutliveError } from "../../../job/errors.ts";
import { programFile } from "../../../platform/program-file.ts";
import type { Message, Progress, Results, Task } from "./child.ts";

/** The longest delay that a timer accepts. */
const MAX_TIMER_MS = 2 ** 31 - 1;

export interface ChildOptions {
  /** The child is killed after this long. Default: no limit. */
  readonly limitMs?: number;
  readonly onProgress?: (progress: Progress) => void;
  readonly signal?: AbortSignal;
  /** The child does not keep this process alive. Default false. */
  readonly background?: boolean;
}

/** Resolves to null if the task took longer than its limit; rejects with the error that the child reported. */
export function runInChild<Name extends Task["do"]>(
  task: Task & { readonly do: Name },
  options: ChildOptions = {},
): Promise<Results[Name] | null> {
  const { limitMs = Number.POSITIVE_INFINITY, onProgress, signal, background = false } = options;
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const child = fork(programFile("stores/sqlite/doctor/child"), [], {
      execArgv: ["--disable-warning=ExperimentalWarning"],
      stdio: ["ignore", "ignore", "pipe", "ipc"],
    });
    if (background) unref(child);
    let expired = false;
    let stderr = "";
    const kill = (): void => void child.kill("SIGKILL");
    const timer =
      limitMs <= MAX_TIMER_MS
        ? setTimeout(() => {
            expired = true;
            kill();
          }, limitMs)
        : undefined;
    let last: Message | undefined;
    child.stderr?.on("data", (data: Buffer) => (stderr = `${stderr}${data.toString()}`.slice(-4_000)));
    child.on("message", (message: Message) => {
      if (message.type === "progress") onProgress?.(message);
      else last = message;
    });
    signal?.addEventListener("abort", kill, { once: true });
    child.on("error", reject);
    // Its last message may arrive after its exit, but not after the channel is closed.
    const disconnected = new Promise<void>((done) => void child.once("disconnect", done));
    child.on("close", (code, killed) => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", kill);
      void disconnected.then(() => {
        if (last?.type === "result") resolve(last.value as Results[Name]);
        else if (last?.type === "error") reject(errorOf(last));
        else if (expired) resolve(null);
        else reject(signal?.aborted ? (signal.reason as Error) : died(task, code, killed, stderr));
      });
    });
    child.send(task, (error) => void (error && kill()));
  });
}

function unref(child: ChildProcess): void {
  child.unref();
  child.channel?.unref();
  (child.stderr as unknown as { unref?: () => void } | null)?.unref?.();
}

function errorOf({ code, what, hint, data }: Extract<Message, { type: "error" }>): Error {
  return code === null ? new Error(what) : new OutliveError(code as ErrorCode, what, hint, data);
}

function died(task: Task, code: number | null, signal: string | null, stderr: string): OutliveError {
  return new OutliveError(
    ErrorCode.storeFailed,
    `The process that was to ${task.do} ${task.path} ended without a result (${signal ?? `exit code ${code}`}).`,
    `It is safe to try again.${stderr === "" ? "" : ` It printed: ${stderr.trim()}`}`,
    { path: task.path, task: task.do, code, signal },
  );
}
