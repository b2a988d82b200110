#!/usr/bin/env node
// The executable: checks the Node that runs it before anything that an older one could not even parse is loaded.
import nodeModule from "node:module";

const [major = 0] = process.versions.node.split(".").map(Number);
if (major < 24) {
  console.error(
    `outlive needs Node 24.16 or newer, and this is Node ${process.versions.node}: install a newer one, or run it with \`npx -p node@24 -p outlive outlive\`.`,
  );
  process.exitCode = 1;
} else {
  // Loading takes most of a short command's time: a third of it is saved from the second call on.
  nodeModule.enableCompileCache?.();
  // A reader that has seen enough (`| head`) is not a failure.
  process.stdout.on("error", (error: NodeJS.ErrnoException) => {
    if (error.code === "EPIPE") process.exit(0);
    throw error;
  });
  import("./main.ts")
    .then(({ main }) => main(process.argv.slice(2)))
    .then(
      (code) => {
        process.exitCode = code;
        // The command has ended. Modules of the user's that it loaded may hold timers or connections.
        setTimeout(() => process.exit(), 1_000).unref();
      },
      (thrown: unknown) => {
        console.error(thrown);
        process.exitCode = 1;
      },
    );
}
