// `outlive status`: one screen about everything, and what to do next. `--check` is for machines, `--watch` for people.
import { duration } from "../flags.ts";
import { ExitCode } from "../exit-codes.ts";
import { watch } from "../live-view.ts";
import type { Register } from "../main.ts";
import { look, type Look, statusOf, type Status } from "../survey.ts";
import { jsonText } from "../terminal.ts";
import { statusLines } from "../views/status.ts";

interface Flags {
  readonly check?: boolean;
  readonly watch?: boolean;
  readonly maxAge: number;
}

export const register: Register = (program, run) => {
  program
    .command("status")
    .description("one screen: kinds, workers, incidents, the store's health, and what to do next")
    .option("--check", "exit with 1 if something needs a person")
    .option("--watch", "look again every second, until q or Ctrl-C")
    .option("--max-age <duration>", "how long the oldest ready job may wait", duration, 300_000)
    .addHelpText(
      "after",
      `
--check exits with 1 if: jobs are ready and no live worker knows their kind; a dead worker's jobs wait and no live worker can take
them; a job was quarantined within a day; the oldest ready job is older than --max-age (default 5m; paused kinds don't count); the
store is not ok or blocked.`,
    )
    .action(
      run(async ({ terminal, attach }, command) => {
        const flags = command.opts<Flags>();
        const engine = await attach();
        let before: Look | null = null;
        let ok = true;
        const status = async (): Promise<Status> => {
          const now = await look(engine, Date.now);
          const made = statusOf(now, before, flags.maxAge);
          before = now;
          ok = made.ok;
          return made;
        };
        if (flags.watch === true)
          await watch(terminal, async ({ columns, rows }) => {
            const now = await status();
            return terminal.json ? [jsonText(now)] : statusLines(now, { ...terminal, columns }, rows);
          });
        else {
          const now = await status();
          terminal.answer(now, () => statusLines(now, terminal).join("\n"));
        }
        return flags.check === true && !ok ? ExitCode.failure : ExitCode.ok;
      }),
    );
};
