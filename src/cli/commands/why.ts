// `outlive why ID`: why a job is not running, or how it runs, and what to do next.
import { ErrorCode, OutliveError } from "../../core/errors.ts";
import type { Register } from "../main.ts";
import { printable } from "../terminal.ts";

export const register: Register = (program, run) => {
  program
    .command("why")
    .argument("<id>", "the job's id")
    .description("why a job is not running, or how it runs, and what to do next")
    .action(
      run(async ({ terminal, attach }, command) => {
        const id = command.args[0]!;
        const explanation = await (await attach()).why(id);
        if (!explanation)
          throw new OutliveError(ErrorCode.notFound, `There is no job ${id}.`, "Check the id: outlive jobs", {
            jobId: id,
          });
        terminal.answer(explanation, () =>
          [
            `${terminal.style("bold", `Job ${explanation.jobId}`)} (${explanation.kind}) is ${explanation.state}: ${explanation.because}`,
            printable(explanation.text),
            ...(explanation.next === "" ? [] : [`${terminal.style("cyan", "Next:")} ${explanation.next}`]),
          ].join("\n"),
        );
      }),
    );
};
