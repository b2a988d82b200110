// `outlive recovery status` and `outlive recovery report`: other spellings, for looking at the latest recovery alone.
import { noSuchIncident } from "../not-found.ts";
import type { Register } from "../main.ts";
import { count } from "../words.ts";
import { unrecovered, unrecoveredText, withoutText } from "./recover.ts";

export const register: Register = (program, run) => {
  const recovery = program.command("recovery").description("the latest recovery: status, report");
  recovery
    .command("status")
    .description("whether somebody is to be recovered, and how the latest recovery went")
    .action(
      run(async ({ terminal, attach }) => {
        const engine = await attach();
        const wouldRecover = await unrecovered(engine);
        const latest = withoutText(await engine.report());
        terminal.answer({ wouldRecover, latest }, () => {
          const failed = latest?.recoveredJobs.filter(({ success }) => !success).length ?? 0;
          const last = latest
            ? `The latest recovery (${latest.startedAt}) dealt with ${count(latest.deadWorkers.length, "dead worker")} and ${count(latest.recoveredJobs.length, "job")}${failed === 0 ? "" : `, ${failed} of them without success`}${latest.completedAt === null ? ", and is not finished" : ""}. Its report: outlive recovery report`
            : "There was no recovery yet: no worker has died.";
          return [unrecoveredText(wouldRecover), "", last].join("\n");
        });
      }),
    );
  recovery
    .command("report")
    .argument("[incident]", "the id of an incident (default: the latest recovery)")
    .description("the report of the latest recovery that found anything, or of one incident")
    .action(
      run(async ({ terminal, attach }, command) => {
        const id = command.args[0];
        const report = await (await attach()).report(id);
        if (!report && id !== undefined) throw noSuchIncident(id);
        terminal.answer(
          { report: withoutText(report) },
          () => report?.text ?? "There was no recovery yet: no worker has died.",
        );
      }),
    );
};
