// The same command in several processes, each with a part of the work. A seed is the same wherever it runs; only sums are made here.
import { fork } from "node:child_process";
import { setImmediate as turn } from "node:timers/promises";

/** What a child says: its end, or how far it is. */
type Said<T> = { readonly result: T } | { readonly done: number };

/** Runs one child for each list of arguments, and returns what each of them reported. `onDone` hears how much all of them have done. */
export function inParallel<T>(
  argumentLists: readonly (readonly string[])[],
  onDone: (done: number) => void = () => {},
): Promise<readonly T[]> {
  const done = argumentLists.map(() => 0);
  return Promise.all(
    argumentLists.map((args, i) =>
      child<T>(args, (ofOne) => {
        done[i] = ofOne;
        onDone(done.reduce((sum, one) => sum + one, 0));
      }),
    ),
  );
}

/** In a child: the result for its parent. Returns whether there is a parent. */
export function report(result: unknown): boolean {
  process.send?.({ result }); // its own answer is about a full pipe
  return process.send !== undefined;
}

/** In a child: how far it is. Its parent may have been killed; no one would read the result then, and it ends. Returns whether there is a parent. */
export async function reportDone(done: number): Promise<boolean> {
  if (!process.send) return false;
  await turn(); // a simulation never lets the loop turn, and only there is the parent's end heard
  if (!process.connected) process.exit(1);
  process.send({ done });
  return true;
}

function child<T>(args: readonly string[], onDone: (done: number) => void): Promise<T> {
  return new Promise((resolve, reject) => {
    const running = fork(new URL("main.ts", import.meta.url), [...args, "--processes", "1"]);
    let end: { readonly result: T } | null = null;
    running.on("message", (said) => {
      const message = said as Said<T>;
      if ("result" in message) end = message;
      else onDone(message.done);
    });
    running.on("error", reject);
    running.on("exit", (code, signal) => {
      if (end) resolve(end.result);
      else reject(new Error(`sim ${args.join(" ")} ended with ${signal ?? code} and reported nothing`));
    });
  });
}
