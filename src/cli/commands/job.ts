// `outlive job ID`: the whole story of one job.
import { noSuchJob } from "../not-found.ts";
import type { Register } from "../main.ts";
import { storyLines } from "../views/job.ts";

export const register: Register = (program, run) => {
  program
    .command("job")
    .argument("<id>", "the job's id")
    .description("the whole story of one job: attempts, owners, steps, errors, incidents, log")
    .option("--full", "nothing shortened: input, result, stack and every entry")
    .action(
      run(async ({ terminal, attach }, command) => {
        const id = command.args[0]!;
        const { full = false } = command.opts<{ full?: boolean }>();
        const job = await (await attach()).get(id);
        if (!job) throw noSuchJob(id);
        terminal.answer(job, () => storyLines(job, terminal, Date.now(), full).join("\n").trimEnd());
      }),
    );
};
