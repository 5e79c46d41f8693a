"""Control over the long run: virtual queues, their floors and bounds."""
