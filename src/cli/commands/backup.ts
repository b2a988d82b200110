// `outlive backup FILE`: a copy of the store as it is at one moment, made while everything runs.
import { resolve } from "node:path";
import { humanMs } from "../../core/duration.ts";
import type { Register } from "../main.ts";
import { thousands } from "../words.ts";

const TELL_MS = 1_000;

export const register: Register = (program, run) => {
  program
    .command("backup <file>")
    .description("copy the store into a new file while workers go on; checked, complete, and for its owner only")
    .option("--force", "replace a file of that name")
    .action(
      run(async ({ terminal, attach }, command) => {
        const [file] = command.args;
        const { force = false } = command.opts<{ force?: boolean }>();
        const engine = await attach();
        let toldAt = performance.now();
        const done = await engine.backup(resolve(file!), {
          force,
          onProgress: ({ bytes, totalBytes }) => {
            if (performance.now() - toldAt < TELL_MS) return;
            toldAt = performance.now();
            terminal.remark(`${thousands(bytes)} of at most ${thousands(totalBytes)} bytes`);
          },
        });
        terminal.answer(done, () =>
          [
            `${done.file}: ${thousands(done.bytes)} bytes in ${humanMs(done.tookMs)}, checked.`,
            "To put it back: stop all workers, move the old file with its -wal and -shm away, put this one in its place, then: outlive recover --restored",
          ].join("\n"),
        );
      }),
    );
};
