// The same command in several processes, each with a part of the work. A seed is the same wherever it runs; only sums are made here.
import { fork } from "node:child_process";

/** Runs one child for each list of arguments, and answers what each of them reported. */
export function inParallel<T>(argumentLists: readonly (readonly string[])[]): Promise<readonly T[]> {
  return Promise.all(argumentLists.map((args) => child<T>(args)));
}

/** In a child: the result for its parent. Answers whether there is a parent. */
export function report(result: unknown): boolean {
  return process.send?.(result) ?? false;
}

function child<T>(args: readonly string[]): Promise<T> {
  return new Promise((resolve, reject) => {
    const running = fork(new URL("main.ts", import.meta.url), [...args, "--processes", "1"]);
    let result: { readonly value: T } | null = null;
    running.on("message", (value) => {
      result = { value: value as T };
    });
    running.on("error", reject);
    running.on("exit", (code, signal) => {
      if (result) resolve(result.value);
      else reject(new Error(`sim ${args.join(" ")} ended with ${signal ?? code} and reported nothing`));
    });
  });
}
