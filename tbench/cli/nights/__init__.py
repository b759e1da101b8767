"""Commands about many nights: doing one, judging the last, and the history of all."""
