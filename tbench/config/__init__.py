"""One configuration: flags, files, environment, presets and run.json are all `settings.RunConfig`."""
