"""What claims, renewals, promotion and recovery cost when the tables have grown, or swell."""
