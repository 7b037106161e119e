import { defineConfig } from "vitest/config";

export default defineConfig({
  test: { include: ["*.test.mjs"], setupFiles: ["token.mjs"], testTimeout: 60_000, fileParallelism: false },
});
